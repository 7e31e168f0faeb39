"""Files that come in: reading multipart bodies, and files kept until a later request uses them."""
