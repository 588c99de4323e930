"""`rlzoo benchmark estimators`: gradient estimators judged by a language task where every response is enumerated."""
