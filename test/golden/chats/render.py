# Writes golden.json and constructs.json. The first: what vLLM 0.32 makes of each chat of chats.json with each template of TRL 1.16.0
# (Apache-2.0; trl/chat_templates of its wheel, those that are not for training): preparation, Jinja and tokenizer are vLLM's and
# transformers' own code; no server runs. The second: what
# Jinja makes of each template there, with transformers' settings; null: it refuses.
#   .cache/vllm/bin/python test/golden/chats/render.py TRL_FOLDER MODEL_FOLDER
import copy
import hashlib
import json
import sys
from pathlib import Path

from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import _compile_jinja_template
from vllm.config import ModelConfig
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers import chat_utils, hf

HERE = Path(__file__).parent
templates = Path(sys.argv[1]) / "chat_templates"
model = sys.argv[2]
tokenizer = AutoTokenizer.from_pretrained(model, bos_token="<|pad|>")
config = ModelConfig(model=model, dtype="float32")


def written(source: str, body: dict) -> str:
    request = ChatCompletionRequest(**copy.deepcopy(body), chat_template=source)
    tools = [tool.model_dump() for tool in request.tools] if request.tools else None
    params = request.build_chat_params(None, "auto")
    params = params.with_defaults({"tools": tools, "tokenize": False})
    form = hf.resolve_chat_template_content_format(
        source, tools, "auto", tokenizer, model_config=config
    )
    conversation, _, _ = chat_utils.parse_chat_messages(request.messages, config, form)
    kwargs = params.get_apply_chat_template_kwargs()
    return hf.safe_apply_chat_template(config, tokenizer, conversation, **kwargs)


def digest(source: str, body: dict) -> str | None:
    """None: refused."""
    try:
        text = written(source, body)
    except Exception:  # noqa: BLE001
        return None
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def construct(source: str) -> str | None:
    try:
        return _compile_jinja_template(source).render(messages=[], tools=None)
    except Exception:  # noqa: BLE001
        return None


path = HERE / "constructs.json"
constructs = [[source, construct(source)] for source, _ in json.loads(path.read_text())]
path.write_text(json.dumps(constructs, ensure_ascii=False, indent=2) + "\n")

chats = json.loads((HERE / "chats.json").read_text())
golden = {}
for path in sorted(templates.glob("*.jinja")):
    if path.stem.endswith("_training"):
        continue
    source = path.read_bytes().decode()
    texts = {name: digest(source, body) for name, body in chats.items()}
    golden[path.stem] = {"source": source, "texts": texts}
(HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, indent=2) + "\n")
refused = sum(text is None for one in golden.values() for text in one["texts"].values())
print(f"{len(golden)} templates, {len(chats)} chats, {refused} refused")
