"""Language models: token generation as an environment, and what training one needs."""
