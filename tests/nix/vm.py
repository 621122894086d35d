# What happens in the virtual machine of vm.nix.
import json
import shlex


def ask(text: str, *options: str) -> str:
    """Sends a message as a member of the group; the answer."""
    command = shlex.join(["bxctl", "send", *options, text])
    return machine.succeed(f"su -l alice -c {shlex.quote(command)}", timeout=600)


def records(session: str) -> list:
    return json.loads(machine.succeed(f"su -l alice -c 'bxctl show --json {session}'"))


def journal(*fields: str) -> list:
    """The daemon's messages that have these fields, over all boots."""
    lines = machine.succeed(f"journalctl -u loopd -o json --no-pager {shlex.join(fields)}")
    return [json.loads(line) for line in lines.splitlines()]


def wait() -> None:
    machine.wait_for_unit("loopd.service")
    machine.wait_for_unit("loopd-model.service")


machine.start(allow_reboot=True)
wait()

with subtest("a conversation"):
    ask("Hello! Who are you?", "--new")
    session = json.loads(machine.succeed("su -l alice -c 'bxctl sessions --json'"))[0]["id"]
    before = records(session)
    assert [r["type"] for r in before].count("assistant_message") == 1, before

with subtest("the socket is for the group alone"):
    machine.fail("su -l mallory -c 'bxctl status'")
    machine.fail("su -l alice -c 'ls /var/lib/boxmaker'")
    machine.fail("su -l alice -c 'ls /run/boxmaker-model'")

with subtest("the journal has fields"):
    (ready,) = journal("EVENT=ready")
    assert ready["_SYSTEMD_UNIT"] == "loopd.service", ready
    (completion,) = journal(f"SESSION={session}", "EVENT=completion")
    assert int(completion["PROMPT_N"]) > 0 and completion["CACHE_N"] == "0", completion
    (end,) = journal(f"SESSION={session}", "EVENT=turn_end")
    assert end["TURN"] == completion["TURN"], end

with subtest("the unit is hardened"):
    machine.succeed("systemd-analyze security --threshold=12 loopd.service >&2")

with subtest("a restart of the daemon evaluates nothing twice"):
    machine.systemctl("restart loopd.service")
    wait()
    ask("What is the capital of France?", "--session", session)
    assert records(session)[: len(before)] == before
    assert journal("EVENT=cache_lost") == []
    before = records(session)

with subtest("a reboot"):
    machine.reboot()
    wait()
    assert records(session) == before
    ask("And of Spain?", "--session", session)
    before = records(session)

with subtest("a power cut"):
    machine.crash()
    machine.start(allow_reboot=True)
    wait()
    assert records(session) == before
    ask("Thank you.", "--session", session)
    assert [r["type"] for r in records(session)].count("assistant_message") == 4

with subtest("a home that was made for another slot is refused, once"):
    machine.succeed("systemctl stop loopd.service")
    status, words = machine.execute("runuser -u boxmaker -- loopd serve --slot 1 2>&1")
    assert status == 78 and "slot" in words, (status, words)
    machine.succeed("systemctl start loopd.service")
    wait()
