"""Names of teams and workloads, so that a simulated fleet reads like a real one."""

TEAMS = ("nlp-research", "vision", "speech", "ranking", "platform-ml", "robotics")
PRODUCTS = ("assistant-prod", "search-prod", "moderation-prod", "docs-ai")
PEOPLE = ("amira", "bo", "chen", "dana", "eero", "farah", "goran", "hana", "ivo", "jun", "kofi", "lena", "mika", "nora")

TRAINING_NAMES = (
    "llm-7b-pretrain", "llm-13b-sft", "vit-l-pretrain", "asr-large", "reward-model", "dpo-sweep", "diffusion-xl",
    "moe-8x7b", "retriever-e5", "tts-multilingual", "detr-r101", "code-llm-3b", "long-context", "clip-h14",
)  # fmt: skip
SHORT_NAMES = ("eval-mmlu", "tokenize", "ablation", "lr-probe", "unit-bench", "distill-test", "quantize", "smoke")
HOST_BOUND_NAMES = ("video-decode-train", "tabular-gbm", "audio-augment-train", "graph-sampler-train")
SERVICE_NAMES = (
    "chat-vllm", "embed-api", "rerank", "translate", "ocr", "image-tagger", "asr-stream", "tts-api", "code-complete",
    "summarize", "toxicity", "search-embed", "caption", "guard",
)  # fmt: skip
BATCH_NAMES = ("nightly-embed", "report-ocr", "score-ads", "index-refresh")

IMAGES = {
    "training": "registry.example.com/ml/pytorch-train:24.10",
    "short": "registry.example.com/ml/pytorch-train:24.10",
    "host_bound": "registry.example.com/ml/pytorch-train:24.10",
    "serving": "registry.example.com/serving/vllm-openai:v0.6.3",
    "human": "registry.example.com/notebooks/jupyter-pytorch:2024.3",
    "batch": "registry.example.com/ml/batch-inference:5.2",
}
