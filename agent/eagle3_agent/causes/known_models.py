"""Known failures of libraries, the model and its configuration; pure."""

from __future__ import annotations

from .kinds import Known, known

KNOWN: tuple[Known, ...] = (
    # ------------------------------------------------------------- libraries that do not fit
    known(
        "spec-vllm-misfit",
        r"unexpected keyword argument|has no attribute|cannot import name|missing \d+ required"
        r"|takes \d+ positional|No module named",
        "speculators and the installed vLLM do not fit, and no patch covers this.",
        '`eagle3-console compat` lists what was found; engine.name = "vllm" needs no speculators.',
        frames=r"/speculators/",
    ),
    known(
        "patches-unclear",
        r"cannot tell whether \d+ patches are needed",
        "What is installed is unlike every pair of vLLM and speculators that the patches know.",
        "`eagle3-console compat` lists what was found; install a pair that is supported, or set "
        'engine.name = "vllm".',
    ),
    known(
        "module-missing",
        r"ModuleNotFoundError|No module named|requires the following packages that were not found",
        "A Python package is not in the profile's interpreter.",
        "Install it there, or point host.python at the interpreter that has it.",
    ),
    known(
        "shared-library",
        r"cannot open shared object file|undefined symbol|version `?GLIBC",
        "A compiled library does not fit the others or the system.",
        "Install torch and vLLM built for the same CUDA; check LD_LIBRARY_PATH in host.env.",
    ),
    known(
        "compiler",
        r"Failed to find C compiler|Could not find nvcc|nvcc: not found|Ninja is required"
        r"|Python\.h: No such file",
        "A kernel had to be compiled on the spot and the tools for it are missing.",
        "Install gcc, ninja, Python's headers or the CUDA toolkit, or choose a backend that "
        "needs none (VLLM_ATTENTION_BACKEND in host.env).",
    ),
    # ------------------------------------------------------------- model and configuration
    known(
        "trust-remote-code",
        r"trust_remote_code|contains custom code which must be executed",
        "The checkpoint brings its own Python and the profile does not allow it.",
        "Read that code, then set model.trust_remote_code = true.",
    ),
    known(
        "max-model-len",
        r"User-specified max_model_len .{0,200}greater than the derived"
        r"|max_model_len = \d+, and .{0,200} has \d+ positions",
        "The model was not made for sequences this long.",
        "Lower model.max_model_len to what the message says.",
    ),
    known(
        "heads",
        r"must be divisible by tensor[_ ]parallel[_ ]size|not divisible by.{0,40}tensor"
        r"|is not divisible by \d+$",
        "The model's heads or sizes cannot be split over this many GPUs.",
        "Choose a model.tensor_parallel_size that divides them (the message names the number).",
    ),
    known(
        "architecture",
        r"Model architectures? .{0,200}not supported|does not recognize this architecture"
        r"|Cannot find model module|not.{0,20}supported by vLLM",
        "The installed libraries do not know this model.",
        "Install a newer vLLM (and transformers) in the profile's interpreter.",
    ),
    known(
        "quantization",
        r"quantization method.{0,200}(?:not supported|does not match)|Unknown quantization"
        r"|Quantization scheme is not supported|is not supported for quantization",
        "This vLLM or this GPU does not know the checkpoint's quantisation.",
        "The preflight's check of the quantisation says what it needs.",
    ),
    known(
        "tokenizer",
        r"Can't load tokenizer|its tokenizer cannot be loaded|Tokenizer class \S+ does "
        r"not exist|TokenizersBackend|Error parsing.{0,40}tokenizer",
        "The tokenizer's files are missing or made by another version of transformers.",
        "Copy the tokenizer's files again; for TokenizersBackend set tokenizer_class to "
        "PreTrainedTokenizerFast in tokenizer_config.json.",
    ),
    known(
        "chat-template",
        r"chat_template is not set|no chat template|TemplateError|jinja2\.exceptions",
        "The conversations cannot be turned into tokens: the chat template is missing or refuses.",
        "Add chat_template.jinja to the model's folder, or give data with input_ids.",
    ),
    known(
        "prompt-too-long",
        r"prompt.{0,80}longer than the maximum model length|exceeds the model's max length",
        "A row has more tokens than model.max_model_len.",
        "Lower data.seq_length, or set data.too_long to skip or truncate such rows.",
    ),
    known(
        "offline",
        r"couldn't connect to|Repository Not Found|LocalEntryNotFoundError|HfHubHTTPError"
        r"|Max retries exceeded|is not a local folder and is not a valid model identifier",
        "Something wanted to be downloaded; a run must not depend on the network.",
        "Set model.path to a whole folder on the host.",
    ),
    known(
        "attention-backend",
        r"Selected backend .{0,200}is not valid|No valid attention backend|FlashAttention only "
        r"supports",
        "The attention backend cannot do what this model or this GPU asks of it.",
        "Remove VLLM_ATTENTION_BACKEND from host.env, or name a backend that the message allows.",
    ),
    known(
        "vocabulary",
        r"^AssertionError",
        "The checkpoint's embedding has another number of rows than config.json says.",
        "Compare vocab_size in config.json with the shards; copy the one that is wrong again.",
        frames=r"/vocab_parallel_embedding\.py$",
    ),
    known(
        "shapes",
        r"size of tensor a .{0,80}must match|shapes cannot be multiplied|size mismatch for"
        r"|shape .{0,80}is invalid for input of size",
        "Tensors of a layer do not fit each other: mostly config.json, a shard or own code is of "
        "another model.",
        "Look at the line shown; compare config.json with the shards (the preflight does).",
    ),
    known(
        "weights-only",
        r"Weights only load failed",
        "A .pt or .bin file holds more than tensors, and torch refuses to run what is in it.",
        "Use safetensors, or make the file again with tensors only.",
    ),
    known(
        "compile-cache",
        r"(?:InductorError|BackendCompilerFailed|triton).{0,400}(?:No such file|Errno 2\b|Stale)",
        "A compiled kernel vanished from the cache: it was cleaned, or several hosts share it.",
        "Set TRITON_CACHE_DIR and VLLM_CACHE_ROOT in host.env to a local folder of this host.",
    ),
    known(
        "not-text",
        r"UnicodeDecodeError|JSONDecodeError",
        "A file that should hold text or JSON holds something else, or is cut off.",
        "Look at the file that the lines above name; the preflight reads the data's rows.",
    ),
)
