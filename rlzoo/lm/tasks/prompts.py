"""The task whose model, prompts and score are all settings."""

from __future__ import annotations

from rlzoo.lm.tasks.language import LanguageTask


class Prompts(LanguageTask):
    """Any language model, prompts and score, given by the settings `model`, `prompts` and `reward`."""
