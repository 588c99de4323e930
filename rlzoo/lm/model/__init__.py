"""Language models as actor-critics: loading, saving, acting, distributions over tokens."""
