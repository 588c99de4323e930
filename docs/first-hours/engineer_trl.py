"""Two weighted rewards on a list of prompts: leave-one-out and group-normalised advantages, then use the result."""

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

tokenizer = AutoTokenizer.from_pretrained("gpt2")
prompts = ["The lid of our kettle", "At home, my lamp", "So far, this radio", "The zip of the tent"] * 8


def short(completions, **kwargs):
    return [-len(text.split()) / 10 for text in completions]


def finished(completions, **kwargs):
    return [float(text.rstrip().endswith(".")) for text in completions]


for name, trainer_class, config_class in (("rloo", RLOOTrainer, RLOOConfig), ("grpo", GRPOTrainer, GRPOConfig)):
    config = config_class(
        output_dir=f"runs/{name}",
        per_device_train_batch_size=16,
        num_generations=4,
        max_completion_length=16,
        learning_rate=1e-4,
        beta=0.05,
        reward_weights=[1.0, 2.0],
        max_steps=8,
        bf16=False,
        use_cpu=True,
    )
    trainer = trainer_class(
        model=AutoModelForCausalLM.from_pretrained("gpt2"),
        processing_class=tokenizer,
        reward_funcs=[short, finished],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
    )
    trainer.train()
    trainer.save_model(f"runs/{name}/final")
    generate = pipeline("text-generation", model=f"runs/{name}/final", tokenizer=tokenizer)
    print(generate(prompts[0], max_new_tokens=16)[0]["generated_text"])
