"""A server of the Model Context Protocol over standard input and output, as badly behaved as its argument says."""

import json
import os
import sys
import time

MODE = sys.argv[1]
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tool(name, description, schema=None):
    return {"name": name, "description": description, "inputSchema": schema or {"type": "object"}}


def tools():
    if MODE == "many":
        return [tool(f"tool_{n:04}", f"Does the thing number {n}. " + "words " * 50, TEXT) for n in range(2000)]
    if MODE == "names":
        return [tool(f"name {n} \x1b]52;c;aGk=\x07" + "x" * 3000, "Has a bad name.") for n in range(500)]
    basic = [tool("echo", "Says what it is told.", TEXT), tool("crash", "Ends the server."),
             tool("hang", "Never answers."), tool("flood", "Answers with one line of 30 MB."),
             tool("long", "Answers with 100,000 bytes."), tool("fail", "Fails."), tool("odd", "Answers with an image."),
             tool("noise", "Writes garbage, then answers."), tool("change", "Changes the list of tools."),
             tool("ask", "Asks and does not listen."), tool("mutter", "Says something aside.", TEXT),
             tool("echo", "Has the name of another."), tool("no good", "Has a name that cannot be used."),
             {"name": "broken", "description": "Has a schema that is none.", "inputSchema": {"type": "object", "properties": 7}}]
    if os.path.exists("changed"):
        basic.append(tool("fresh", "Is new."))
    return basic


def call(number, name, arguments):
    result = {"content": [{"type": "text", "text": "done"}]}
    if name == "echo":
        result["content"][0]["text"] = arguments["text"]
    elif name == "crash":
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(7)
    elif name == "hang":
        time.sleep(3600)
    elif name == "flood":
        result["content"][0]["text"] = "x" * 30_000_000
    elif name == "long":
        result["content"][0]["text"] = "y" * 100_000
    elif name == "fail":
        result = {"content": [{"type": "text", "text": "no such city"}], "isError": True}
    elif name == "odd":
        result = {"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    elif name == "noise":
        sys.stdout.write("loading …\n\0\xff\n{\n[[[[\n")
        sys.stdout.flush()
    elif name == "ask":
        # asks for ever, and reads no answer
        pings = "".join(json.dumps({"jsonrpc": "2.0", "id": f"{n}" * 50, "method": "ping"}) + "\n" for n in range(500))
        while True:
            sys.stdout.write(pings)
            sys.stdout.flush()
    elif name == "mutter":
        print(f"muttering about {arguments['text']}", file=sys.stderr, flush=True)
        print(f"mumbling about {arguments['text']}", flush=True)
    elif name == "change":
        open("changed", "w").close()
        say({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    say({"jsonrpc": "2.0", "id": number, "result": result})


def answer(message):
    method, number = message.get("method"), message.get("id")
    if MODE == "garbage":
        sys.stdout.write("Welcome to the server!\n")
        sys.stdout.flush()
    elif method == "initialize":
        version = message["params"]["protocolVersion"]
        say({"jsonrpc": "2.0", "id": number, "result": {
            "protocolVersion": version, "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "hostile", "version": "1"}}})
    elif method == "tools/list":
        if MODE == "large":
            count = int((message.get("params") or {}).get("cursor") or 0)
            say({"jsonrpc": "2.0", "id": number, "result": {
                "tools": [tool(f"{count}" + "n" * 4_000_000, "Has a long name.")], "nextCursor": str(count + 1)}})
            return
        if MODE == "endless":
            count = int((message.get("params") or {}).get("cursor") or 0)
            say({"jsonrpc": "2.0", "id": number, "result": {
                "tools": [tool(f"t{count}", "One of many.")], "nextCursor": str(count + 1)}})
            return
        say({"jsonrpc": "2.0", "id": number, "result": {"tools": tools()}})
    elif method == "tools/call":
        call(number, message["params"]["name"], message["params"].get("arguments") or {})
    elif method == "ping":
        say({"jsonrpc": "2.0", "id": number, "result": {}})
    elif number is not None:
        say({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "no such method"}})


if MODE == "die":
    print("no database\x1b]52;c;aGk=\x07 here", file=sys.stderr)
    sys.exit(3)
if MODE == "hang":
    time.sleep(3600)
with open("starts", "a") as starts:
    starts.write(f"{os.getpid()}\n")
for line in sys.stdin:
    answer(json.loads(line))
