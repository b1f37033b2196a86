"""Chat templates of the shapes that models ship, in our own words, and tokenizers that use them.

Each keeps one trait that decides where an answer begins and ends: where the header ends, what
closes a turn, whether there is a prompt for the answer, what becomes of earlier thinking.
"""

from __future__ import annotations

#: As Qwen2.5 and SmolLM2: a role's name on its own line.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: As Llama 3: content is trimmed, nothing stands between turns.
LLAMA3 = (
    "<|begin|>{% for m in messages %}<|head|>{{ m.role }}<|/head|>\n\n{{ m.content | trim }}<|eot|>"
    "{% endfor %}{% if add_generation_prompt %}<|head|>assistant<|/head|>\n\n{% endif %}"
)

#: As Qwen3: thinking stays in turns after the last question, and is dropped before it.
QWEN3 = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% set content = m.content %}"
    "{% if m.role == 'assistant' %}{% set thought = m.reasoning_content or '' %}"
    "{% if '</think>' in content %}"
    "{% set thought = content.split('</think>')[0].split('<think>')[-1] %}"
    "{% set content = content.split('</think>')[-1] %}{% endif %}"
    "<|im_start|>assistant\n{% if loop.index0 > ns.last and (loop.last or thought) %}"
    "<think>\n{{ thought | trim }}\n</think>\n\n{% endif %}{{ content | trim }}"
    "{% for c in m.tool_calls or [] %}\n<call>{{ c | tojson }}</call>{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<reply>{{ content }}</reply><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: As DeepSeek-R1: no line breaks, one mark closes answers alone, the prompt opens the thinking.
DEEPSEEK = (
    "<|begin|>{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}<|User|>{{ m.content }}"
    "{% else %}<|Assistant|>{{ m.content.split('</think>')[-1] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)

#: As gpt-oss: channels, no thinking in earlier turns, another mark closes the last answer.
HARMONY = (
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if m.thinking and loop.last %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)

#: As Mistral's first: the answer follows the question's closing bracket, and there is no prompt.
MISTRAL = (
    "<|begin|>{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}<|end|>"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)

#: A ChatML that knows no prompt for the answer.
PROMPTLESS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
)

#: Marks what the assistant generates itself.
MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}"
    "<|im_end|>{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

#: Says how many messages there are before them: what comes first depends on what comes last.
COUNTING = "{{ messages | length }} messages\n" + CHATML

ALL = {
    "chatml": CHATML,
    "llama3": LLAMA3,
    "qwen3": QWEN3,
    "deepseek": DEEPSEEK,
    "harmony": HARMONY,
    "mistral": MISTRAL,
    "promptless": PROMPTLESS,
    "marked": MARKED,
    "counting": COUNTING,
}

#: Tokens of their own in a tokenizer for all of these templates.
SPECIAL = (
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|head|>",
    "<|/head|>",
    "<|eot|>",
    "<|User|>",
    "<|Assistant|>",
    "<|end|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|return|>",
)
