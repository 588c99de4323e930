"""What all algorithms and tasks share: experience, distributions, estimators, models, collection."""
