"""Language models: loading, acting, distributions of tokens."""
