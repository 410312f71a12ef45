"""Render public chat templates with transformers and with ironmill, and compare.

    pip install torch==2.15.0 transformers==5.22.2 jinja2==3.1.6
    python tools/compare_chat_templates.py target/release/ironmill FOLDER_OF_JINJA_FILES

Public templates are their makers' and not in this repository; llama.cpp has a folder of them (`models/templates`). Each is rendered
over the conversations of tools/make_golden_chat.py and a few more. Where transformers fails, as on a loop over None, ironmill may be
lenient: that is counted, not shown.
"""

import json
import subprocess
import sys
from pathlib import Path

from make_golden_chat import CALLS, CONVERSATIONS, DOCUMENTS, SPECIAL, TALK, TOOL, render

CALL_TEXT = json.loads(json.dumps(CALLS))
for message in CALL_TEXT:
    for call in message.get("tool_calls", []):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    if not isinstance(message.get("content", ""), str):
        message["content"] = "text" if message["content"] else ""
MORE = {
    "tools_without_calls": {"messages": TALK, "tools": [TOOL], "add_generation_prompt": True},
    "calls_as_text": {"messages": CALL_TEXT, "tools": [TOOL, TOOL], "add_generation_prompt": True},
    "calls_in_the_past": {"messages": CALL_TEXT[:-1], "add_generation_prompt": False},
    "thinking_off": {"messages": TALK[1:], "add_generation_prompt": True, "enable_thinking": False, "thinking": False},
    "thinking_on": {"messages": TALK, "add_generation_prompt": True, "enable_thinking": True, "thinking": True},
    "documents_and_tools": {"messages": TALK, "documents": DOCUMENTS, "tools": [TOOL], "add_generation_prompt": True},
    "one_word": {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": True},
}


def ours(binary: str, template: str, variables: dict) -> dict:
    """What ironmill makes of a template, by the process that it starts for one."""
    question = json.dumps({"template": template, "variables": variables})
    done = subprocess.run([binary, "--render-a-chat-template"], input=question.encode(), capture_output=True, check=False)
    answer = json.loads(done.stdout) if done.stdout else {"Err": {"Died": done.returncode}}
    if "Ok" in answer:
        return {"text": answer["Ok"]}
    kind, words = next(iter(answer["Err"].items()))
    return {"refused": words} if kind == "Refused" else {"fails": True, "why": words}


def main() -> None:
    binary, folder = sys.argv[1], Path(sys.argv[2])
    cases = texts = equal = same_end = lenient = 0
    for path in sorted(folder.glob("*.jinja")):
        template = path.read_text(encoding="utf-8")
        for name, variables in (CONVERSATIONS | MORE).items():
            variables = {**variables, **SPECIAL}
            wanted, found = render(template, variables), ours(binary, template, variables)
            why = found.pop("why", None)
            cases += 1
            texts += "text" in wanted
            equal += "text" in wanted and wanted == found
            same_end += "text" not in wanted and wanted == found
            lenient += "fails" in wanted and "text" in found
            if wanted != found and "fails" not in wanted:
                print(f"{path.name} {name}\n  transformers {str(wanted)[:600]}\n  ironmill     {str(found)[:600]} {why or ''}")
    print(
        f"{cases} renderings: {equal} of {texts} texts equal; {same_end} refusals and failures alike, "
        f"{lenient} times a text where transformers fails"
    )


if __name__ == "__main__":
    main()
