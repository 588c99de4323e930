"""Language models: token generation as an environment, and all that it takes to train one with any algorithm."""

TASKS = {
    "RandomWalks": "walks to a goal in a graph of 21 nodes (trlX's benchmark); reports exact expected optimality",
    "Reviews": "short product reviews that are to come out positive; a whole RLHF pipeline on text made here",
    "Prompts": "any prompts, language model and score: --prompts FILE --model DIR --reward module:function",
}
"""The language tasks, known without importing anything."""
