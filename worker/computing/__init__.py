"""One module per kind of job: from artifacts in the store, through the mathematics, to artifacts in the store."""
