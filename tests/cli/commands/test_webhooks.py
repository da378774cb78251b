"""`swarmkeep webhooks`, on both databases."""

from __future__ import annotations

from standardwebhooks import Webhook as Verifier

from tests.cli.command_line import CommandLine
from tests.support.receiver import receiving

HOOK = "https://example.com/hook"


def test_webhook_is_made_changed_and_deleted(cli: CommandLine, where: list[str]) -> None:
    assert "no webhooks" in cli("webhooks", "list", *where).err
    made = cli("webhooks", "create", HOOK, "--type", "run.failed", "--metadata", "k=v", "--json", *where).json
    assert made["secret"].startswith("whsec_")
    assert (made["url"], made["types"], made["metadata"]) == (HOOK, ["run.failed"], {"k": "v"})
    misspelt = cli("webhooks", "create", HOOK, "--type", "run.complete", "--json", *where)
    assert "no events of the type 'run.complete'; did you mean 'run.completed'?" in misspelt.err
    assert cli("webhooks", "delete", misspelt.json["id"], *where).code == 0
    [listed] = cli("webhooks", "list", "--json", *where).json
    assert "secret" not in listed
    assert "secrets" not in listed
    assert cli("webhooks", "update", made["id"], "--state", "paused", "--json", *where).json["state"] == "paused"
    [rotated] = cli("webhooks", "rotate", made["id"], *where).lines
    assert rotated != made["secret"]
    assert "everything was delivered" in cli("webhooks", "deliveries", made["id"], *where).err
    assert "sent again: 0" in cli("webhooks", "resend", made["id"], "--all", *where).err
    assert HOOK in cli("webhooks", "list", *where).out
    assert cli("webhooks", "delete", made["id"], *where).code == 0
    told = [line.split()[2:] for line in cli("audit", *where).lines if made["id"] in line]
    assert told[0][:2] == ["webhook.created", made["id"]]
    assert "paused," in next(told for type, *told in told if type == "webhook.updated")
    assert "'wh_none'" in cli.expect_refusal("webhooks", "delete", "wh_none", *where)
    assert "https" in cli.expect_refusal("webhooks", "create", "http://example.com/", *where)
    assert "not public" in cli.expect_refusal("webhooks", "create", "https://10.0.0.1/", *where)
    cli.expect_usage_error("webhooks", "resend", made["id"], *where)


def test_test_message_is_sent_from_here(cli: CommandLine, where: list[str]) -> None:
    env = {"SWARMKEEP_WEBHOOK_NETWORKS": "127.0.0.1"}
    with receiving() as receiver:
        made = cli("webhooks", "create", receiver.url, "--json", *where, env=env).json
        assert "delivered in" in cli("webhooks", "test", made["id"], *where, env=env).err
        [got] = receiver.received
        Verifier(made["secret"]).verify(got.body, dict(got.headers))
    failed = cli("webhooks", "test", made["id"], "--json", *where, env=env)
    assert (failed.code, failed.json["delivered"]) == (1, False)
