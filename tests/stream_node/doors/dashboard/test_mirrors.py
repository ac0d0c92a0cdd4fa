"""Goal: the page of mirrors shows how each copy is, and promotes and removes mirrors for those who may.

Method: real nodes; pages over real HTTP, read by the standard library's parser of HTML, and compared with what the
nodes answer to a client.
"""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
import trio

from ockam.identity.rules.rights import Right
from ockam.identity.rules.tokens import create_token
from stream_client import PushFailed, connect
from stream_node.doors.dashboard import access_page
from stream_node.fleet.mirror.protocol import ADDRESS, MIRRORS, MirrorAction, MirrorCondition, MirrorRequest
from tests.ockam.identity.rules.guarded_node import guarded, may, write_rules
from tests.stream_node.doors.dashboard.dashboard_page import HtmlPage, get, send, wait_page
from tests.stream_node.doors.http.http_node import http_node
from tests.stream_node.fleet.mirror.mirrors import add, follows_to, is_in, states, wait_for
from tests.support.served import PATIENCE_S, served

PROMOTE, REMOVE = "/dashboard/mirrors/promote", "/dashboard/mirrors/remove"


async def fill(address: str, name: str, count: int, partitions: int = 1) -> None:
    async with connect(address) as client:
        stream = await client.create_partitioned(name, partitions)
        for partition in stream.partitions:
            for number in range(count):
                await partition.push(b"%d" % number)


def targets(page: HtmlPage) -> list[str]:
    """Where the forms of a page lead, but for that of the sign-out."""
    return [target for target, _ in page.forms if target != "/dashboard/sign-out"]


async def after(client: httpx.AsyncClient, answer: httpx.Response) -> str:
    """The text of the page to which a form leads."""
    assert answer.status_code == 303, answer.text
    return HtmlPage((await client.get(answer.headers["location"])).text).text


@pytest.mark.slow
async def test_each_partition_is_shown(tmp_path: Path) -> None:
    """Two partitions of one mirror, and one that has set messages aside, with a link to these. A name that is HTML
    stays text."""
    async with served(tmp_path / "a") as source, http_node(tmp_path / "b") as node, node.client() as client:
        page = await get(client, "/mirrors")
        assert "This node has no mirrors" in page.text
        assert (targets(page), page.links("/dashboard/mirrors")) == ([], [])
        address = node.running.address
        await fill(source.address, "<i>parts</i>", 3, partitions=2)
        await fill(source.address, "orders", 5)
        await fill(address, "orders", 2)
        await add(address, "<i>parts</i>", source.address)
        await add(address, "orders", source.address, force=True)
        await wait_for(address, follows_to(3, 3), "<i>parts</i>")
        (state,) = await wait_for(address, follows_to(5), "orders")
        page = await get(client, "/mirrors")
        for partition in range(2):
            row = f"<i>parts</i> {partition} following {source.address} 3 3 0 0.0 s"
            assert row in page.text
        assert f"{state.aside_name} 2 messages" in page.text
        assert page.links("/dashboard/messages") == [{"stream": state.aside_name, "partition": "0"}]
        assert "Following 3 of 3 partitions" in page.text
        assert page.links("/dashboard/mirrors")
        part = await get(client, "/mirrors")
        assert "<i>parts</i> 1 following" in part.text
        # What is behind, and why, is shown too.
        source.server.stop()
        await wait_page(client, "Following 0 of 3 partitions", "/mirrors")
        with trio.fail_after(PATIENCE_S):
            while True:
                (state,) = await states(address, "orders")
                if f"orders 0 unreachable {state.reason} {source.address}" in (await get(client, "/mirrors")).text:
                    break
        assert state.reason


async def test_a_planned_promotion_by_the_form(tmp_path: Path) -> None:
    """The mirror takes pushes, the source follows it, and nothing is missing; without the secret nothing changes."""
    async with http_node(tmp_path / "a") as source, source.client() as other, http_node(tmp_path / "b") as node:
        await fill(source.running.address, "orders", 5)
        address = node.running.address
        await add(address, "orders", source.running.address)
        await wait_for(address, follows_to(5))
        async with node.client() as client:
            page = await get(client, "/mirrors")
            assert (await send(client, page, PROMOTE, csrf="0" * 64, name="orders")).status_code == 403
            refused = await send(client, page, PROMOTE, name="payments")
            assert "is no mirror on this node" in refused.text
            assert await states(address)
            done = await after(client, await send(client, page, PROMOTE, name="orders"))
            assert "orders takes pushes here now. Nothing is lost." in done
            await fill(address, "orders", 1)
            page = await wait_page(other, f"orders 0 following {address} 6 6 0 0.0 s", "/mirrors")
            assert targets(page) == [PROMOTE, PROMOTE, REMOVE]
            assert "This node has no mirrors" in (await get(client, "/mirrors")).text


async def test_a_promotion_that_takes_longer_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A browser that has waited long enough is told so. The list shows the stream until the promotion has ended."""
    monkeypatch.setattr(access_page, "PROMOTION_WAIT_S", -1.0)
    async with served(tmp_path / "a") as source, http_node(tmp_path / "b") as node, node.client() as client:
        await fill(source.address, "orders", 5)
        await add(node.running.address, "orders", source.address)
        await wait_for(node.running.address, follows_to(5))
        page = await get(client, "/mirrors")
        told = await after(client, await send(client, page, PROMOTE, name="orders"))
        assert "orders is being promoted." in told
        await wait_page(client, "This node has no mirrors", "/mirrors")
        await fill(node.running.address, "orders", 1)


@pytest.mark.slow
async def test_the_place_of_a_lost_source_is_taken_by_the_form(tmp_path: Path) -> None:
    """Without the source only the typed name promotes. The page then shows what is fenced, until the form ends that."""
    async with http_node(tmp_path / "b") as node, node.client() as client:
        address = node.running.address
        async with served(tmp_path / "a") as source:
            await fill(source.address, "orders", 5)
            await add(address, "orders", source.address)
            await wait_for(address, follows_to(5))
        page = await get(client, "/mirrors")
        csrf = {"csrf": page.form(PROMOTE)["csrf"]}
        origin = {"origin": str(client.base_url).rstrip("/")}
        for typed in ("", "order"):
            fields = csrf | {"name": "orders", "force": "1", "typed": typed}
            assert (await client.post(PROMOTE, data=fields, headers=origin)).status_code == 400
            assert (await send(client, page, REMOVE, name="orders", typed=typed)).status_code == 400
        async with connect(address) as streams:
            with pytest.raises(PushFailed):
                await (await streams.get_stream("orders")).push(b"refused")
        fields = csrf | {"name": "orders", "force": "1", "typed": "orders"}
        done = await after(client, await client.post(PROMOTE, data=fields, headers=origin))
        assert "orders takes pushes here now. It was 0 messages behind when it last heard of its source" in done
        page = await wait_page(client, f"orders 0 fencing {source.address} cannot be reached", "/mirrors")
        assert "Fencing 1 former source Set aside" in page.text
        # What is fenced can be ended, and not promoted.
        assert targets(page) == [REMOVE]
        assert is_in(MirrorCondition.FENCING)(await states(address))
        done = await after(client, await send(client, page, REMOVE, name="orders", typed="orders"))
        assert "orders follows nobody now, and takes pushes." in done
        assert "This node has no mirrors" in done
        await fill(address, "orders", 1)


@pytest.mark.slow
async def test_a_mirror_is_promoted_beside_a_source_that_goes_on_only_if_that_is_ticked(tmp_path: Path) -> None:
    """The source gives no right to fence it. A refusal says what to do on this page, and not at a command line."""
    (tmp_path / "a").mkdir()
    rights = may(Right.READ | Right.WRITE | Right.CREATE, "orders")
    async with guarded(tmp_path / "a", rights) as a, http_node(tmp_path / "b") as node, node.client() as client:
        address = node.running.address
        await fill(a.running.address, "orders", 1)
        await add(address, "orders", a.running.address)
        await wait_for(address, follows_to(1))
        page = await get(client, "/mirrors")
        assert "Following 1 of 1 partition Lag" in page.text
        assert "This node asks the source for up to 2 s." in page.text
        origin = {"origin": str(client.base_url).rstrip("/")}
        fields = {"csrf": page.form(PROMOTE)["csrf"], "name": "orders"}
        forced = fields | {"force": "1", "typed": "orders"}
        for sent in (fields, forced, fields | {"source_goes_on": "1"}):
            refused = await client.post(PROMOTE, data=sent, headers=origin)
            assert refused.status_code == 400
            text = HtmlPage(refused.text).text
            assert "access denied" in text
            tells = "tick The source goes on in the form Take the place of a lost source" in text
            assert tells == ("force" in sent)
            assert "--" not in text
            assert is_in(MirrorCondition.FOLLOWING)(await states(address))
        # The page has what the error names.
        assert "Take the place of a lost source" in page.text
        assert "The source goes on" in page.text
        assert ("input", "source_goes_on") in [(tag, given.get("name")) for tag, given in page.tags]
        done = await after(client, await client.post(PROMOTE, data=forced | {"source_goes_on": "1"}, headers=origin))
        assert "orders takes pushes here now." in done
        await wait_for(address, is_in(MirrorCondition.UNFENCED))
        await fill(address, "orders", 1)
        await fill(a.running.address, "orders", 1)


async def test_who_may_not_administer_sees_no_form(tmp_path: Path) -> None:
    """Strangers see nothing; an operator sees what he operates, and who has `admin` on a stream sees that stream with
    its forms; without the form the node refuses as well."""
    rules = tmp_path / "access.toml"
    everything = Right.READ | Right.WRITE | Right.CREATE | Right.INDEX | Right.ADMIN | Right.FORWARD
    write_rules(
        rules,
        [
            may(Right.OPERATE, who="token:watcher", name="watches"),
            may(Right.ADMIN, "orders", who="token:keeper", name="keeps"),
            may(everything, who="token:all"),
        ],
    )
    tokens = tmp_path / "data" / "tokens.json"
    tokens.parent.mkdir()
    names = ("watcher", "keeper", "all")
    watcher, keeper, everyone = (create_token(tokens, name, int(time.time()))[0] for name in names)
    async with served(tmp_path / "a") as source, http_node(tmp_path, access_rules=str(rules)) as node:
        for name in ("orders", "payments"):
            await fill(source.address, name, 3)
        async with connect(node.running.address, token=everyone) as streams:
            for name in ("orders", "payments"):
                await streams.session.ask(
                    ADDRESS, MIRRORS, MirrorRequest(0, MirrorAction.ADD, name, source.address, "", False)
                )
        async with (
            node.client() as stranger,
            node.client(token=watcher) as watching,
            node.client(token=keeper) as keeping,
        ):
            closed = await get(stranger, "/mirrors", 403)
            assert (source.address in closed.text, closed.links("/dashboard/mirrors")) == (False, [])
            page = await wait_page(watching, "payments 0 following", "/mirrors")
            assert targets(page) == []
            page = await wait_page(keeping, "orders 0 following", "/mirrors")
            assert "payments" not in page.text
            assert [tag for tag, _ in page.tags].count("option") == 3
            refused = await send(keeping, page, REMOVE, name="payments", typed="payments")
            assert refused.status_code == 403
            assert "follows nobody" in await after(
                keeping, await send(keeping, page, REMOVE, name="orders", typed="orders")
            )
            assert "orders 0" not in (await get(keeping, "/mirrors")).text
