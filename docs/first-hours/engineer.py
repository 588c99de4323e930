"""Two weighted rewards on a list of prompts: leave-one-out and group-normalised advantages, then use the result."""

from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

import rlzoo

model = AutoModelForCausalLM.from_pretrained("gpt2")
tokenizer = AutoTokenizer.from_pretrained("gpt2")
prompts = ["The lid of our kettle", "At home, my lamp", "So far, this radio", "The zip of the tent"] * 8


def short(prompts, responses):
    return [-len(text.split()) / 10 for text in responses]


def finished(prompts, responses):
    return [float(text.rstrip().endswith(".")) for text in responses]


for name, algorithm, passes in (("rloo", "reinforce", {}), ("grpo", "ppo-clip", {"epochs": 1})):
    run = rlzoo.train(
        algorithm,
        "Prompts",
        model=model,
        tokenizer=tokenizer,
        prompts=prompts,
        reward=[(short, 1.0), (finished, 2.0)],
        estimator=name,
        normalize_advantage=False,
        **passes,
        responses_per_prompt=4,
        responses_per_batch=16,
        max_new_tokens=16,
        learning_rate=1e-4,
        beta=0.05,
        total_steps=2_000,
        out=f"runs/{name}",
    )
    generate = pipeline("text-generation", model=str(run.path / "actor"))
    print(generate(prompts[0], max_new_tokens=16)[0]["generated_text"])
