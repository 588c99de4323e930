"""What every algorithm and every task share: experience, distributions, estimators, models, collection."""
