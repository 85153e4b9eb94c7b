"""The `search` tool and its retrievers: ranking, order, snippets, and servers that fail."""

import asyncio
import json
import threading
import time

import pytest
from aiohttp import web
from sums_env import OPTIONS, TASK, calls

from miles_agents import EpisodeError, InfrastructureError, ToolEnv, ToolError, ToolLimits
from miles_agents.contracts import ToolContext
from miles_agents.errors import DataError, FailureCause, ToolErrorKind, UsageError
from miles_agents.tools import Document, SearchTool
from miles_agents.tools.bm25 import BM25Retriever
from miles_agents.tools.http_retriever import HTTPRetriever
from miles_agents.tools.search import snippet
from miles_agents.types import ToolCall

CORPUS = [
    Document(id="mat", title="Cats", text="the cat sat on the mat"),
    Document(id="dog", title="Dogs", text="dogs and cats"),
    Document(id="many", title="", text="a cat a cat a cat"),
    Document(id="seven", title="Lives", text="cat 7"),
    Document(id="rug", title="Cats", text="the cat sat on the mat"),
    Document(id="c", title="Languages", text="C is a language"),
]


def asked(query):
    return ToolCall(id="c0", name="search", arguments={"query": query}, raw="…")


class Library(ToolEnv):
    def __init__(self, tool, **settings):
        self.tools = (tool,)
        self.__dict__.update(settings)

    def tasks(self, split):
        return [TASK]

    def reward(self, episode):
        return 1.0


async def event_of(env, query="cat"):
    await env.reset(seed=0, options=OPTIONS)
    return (await env.step(calls(asked(query)))).info["tool_events"][0]


async def found(retriever, query, k=10):
    return [document.id for document in await retriever.search(query, k)]


# --- BM25 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        # By hand (Lucene's BM25, k1 1.5, b 0.75): among documents with one "cat" the shorter wins; three times "cat" in
        # three words beat once in three. Equal texts come in the order of the corpus.
        ("cat", ["many", "seven", "mat", "rug"]),
        ("CATS", ["dog", "mat", "rug"]),  # a title counts as text
        ("7", ["seven"]),
        ("c language", ["c"]),
        ("zebra", []),
        ("the of and", []),
        ("?!", []),
    ],
)
async def test_documents_are_ranked_and_equal_ones_keep_the_order_of_the_corpus(query, ids):
    assert await found(BM25Retriever(CORPUS), query) == ids


async def test_the_order_of_equal_documents_is_the_corpus_whatever_k_is():
    same = [Document(id=str(number), text="one word or another") for number in range(50)]
    retriever = BM25Retriever(same)
    for k in (1, 3, 49, 50, 80):
        assert await found(retriever, "word", k) == [str(number) for number in range(min(k, 50))]
    texts = ["a word", "a word word", "another word"]
    mixed = [Document(id=str(number), text=texts[number % 3]) for number in range(3000)]
    numbers = [int(each) for each in await found(BM25Retriever(mixed), "word", 3000)]
    assert len(numbers) == 3000
    blocks = [[number for number in numbers if number % 3 == rest] for rest in range(3)]
    assert all(block == sorted(block) for block in blocks)


async def test_a_corpus_is_read_from_json_lines(tmp_path):
    path = tmp_path / "corpus.jsonl"
    lines = [{"id": 7, "text": "a cat"}, {"id": "x", "title": None, "text": "a dog", "year": 1}]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    assert await BM25Retriever(path).search("cat dog", 5) == [
        Document(id="7", text="a cat"),
        Document(id="x", text="a dog"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no documents"),
        ('{"id": "1", "text": "a"}\n{"id": "1"', "line 2: not JSON"),
        ("[1]", "line 1: not an object"),
        ('{"text": "a"}', "line 1: 'id' is None"),
        ('{"id": "1", "text": 3}', "line 1: 'text' must be a text"),
        ('{"id": "1", "text": "a"}\n{"id": 1, "text": "b"}', "has the id '1' twice"),
    ],
)
async def test_a_broken_corpus_stops_the_run_and_names_the_line(tmp_path, text, message):
    path = tmp_path / "corpus.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        await SearchTool(BM25Retriever(path)).open()
    with pytest.raises(DataError, match=r"corpus .*nowhere"):
        await BM25Retriever(tmp_path / "nowhere").open()


async def test_the_index_is_made_once_off_the_event_loop_before_the_first_episode():
    made = []

    class Watched(BM25Retriever):
        def _build(self, future):
            made.append(threading.current_thread())
            time.sleep(0.4)
            super()._build(future)

    beats = 0

    async def heartbeat():
        nonlocal beats
        while True:
            await asyncio.sleep(0.01)
            beats += 1

    tool = SearchTool(Watched(CORPUS))
    envs = [Library(tool, tool_timeout_s=0.3) for _ in range(8)]
    beating = asyncio.create_task(heartbeat())
    events = await asyncio.gather(*(event_of(env) for env in envs))
    beating.cancel()
    assert len(made) == 1
    assert made[0] is not threading.main_thread()
    assert beats > 10  # the loop went on meanwhile
    assert all(event.ok for event in events)  # no call's deadline ran while the index was made


async def test_one_who_gives_up_waiting_leaves_the_index_to_the_others():
    retriever = BM25Retriever(CORPUS)
    waiting = asyncio.create_task(retriever.open())
    await asyncio.sleep(0)
    waiting.cancel()
    assert await found(retriever, "7") == ["seven"]


# --- the tool ---------------------------------------------------------------------------------------------------------


async def test_the_model_is_shown_ids_titles_and_passages():
    event = await event_of(Library(SearchTool(BM25Retriever(CORPUS), k=2)))
    assert event.result == "[many]\na cat a cat a cat\n\n[seven] Lives\ncat 7"
    assert event.info == {"documents": ["many", "seven"]}
    event = await event_of(Library(SearchTool(BM25Retriever(CORPUS))), "zebra")
    assert (event.result, event.ok, event.info) == ("no document fits; try other words", True, {"documents": []})


@pytest.mark.parametrize("query", ["", "  \n", "x" * 2001])
async def test_an_unusable_query_is_the_models_error(query):
    with pytest.raises(ToolError, match="the query"):
        await SearchTool(BM25Retriever(CORPUS)).call({"query": query}, ToolContext())


def test_a_snippet_is_the_passage_with_most_of_the_words():
    text = "alpha " + "x " * 300 + "alpha beta  gamma\n" + "y " * 300 + "beta"
    shown = snippet(text, "Gamma alpha BETA", 60)
    assert "alpha beta gamma" in shown
    assert shown.startswith("… ")
    assert shown.endswith(" …")
    assert len(shown) <= 64
    assert snippet(text, "nothing here", 60) == text[:60] + " …"
    assert snippet("short\n text", "text", 60) == "short text"
    assert snippet("ends " * 50 + "target", "target", 40).endswith("target")


def test_what_is_no_retriever_is_refused():
    with pytest.raises(UsageError, match="is no retriever"):
        SearchTool("corpus.jsonl")


# --- a server ---------------------------------------------------------------------------------------------------------


class Server:
    """A search server that answers from a list of answers, the last one for ever."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []
        self.headers = []

    async def __aenter__(self):
        app = web.Application()
        app.router.add_post("/search", self.handle)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}/search"
        return self

    async def __aexit__(self, *error):
        await self.runner.cleanup()

    async def handle(self, request):
        self.asked.append(await request.json())
        self.headers.append(request.headers)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "hang":
            await asyncio.sleep(3)
        if answer == "break":
            request.transport.abort()
        if isinstance(answer, int):
            return web.Response(status=answer, text="out of\norder")
        return web.Response(text=answer if isinstance(answer, str) else json.dumps(answer))


DOCUMENTS = [{"id": 1, "title": "One", "text": "first", "score": 2.5}, {"id": "2", "text": "second"}]


async def asking(server, **settings):
    """The event of one call against the server."""
    limits = ToolLimits(retries=settings.pop("retries", 3))
    retriever = HTTPRetriever(server.url, **settings)
    try:
        return await event_of(Library(SearchTool(retriever, k=2, limits=limits)), "two words")
    finally:
        await retriever.close()


@pytest.mark.parametrize("answer", [{"documents": DOCUMENTS}, DOCUMENTS, [*DOCUMENTS, *DOCUMENTS]])
async def test_a_server_is_asked_once_and_its_documents_are_shown(answer):
    async with Server(answer) as server:
        event = await asking(server, headers={"X-Key": "k"})
    assert event.result == "[1] One\nfirst\n\n[2]\nsecond"
    assert server.asked == [{"query": "two words", "k": 2}]
    assert server.headers[0]["X-Key"] == "k"


@pytest.mark.parametrize("fault", [500, 503, "break", "hang"])
async def test_faults_that_may_pass_are_asked_again(fault):
    async with Server(fault, fault, DOCUMENTS) as server:
        event = await asking(server, timeout_s=0.3)
    assert event.ok
    assert event.info["retries"] == 2
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (503, "tool 'search' failed 2 times: http.* answered 503: out of order"),
        ("break", "tool 'search' failed 2 times: http"),
        ("hang", "tool 'search' failed 2 times: http.* gave no answer in 0.2 s"),
    ],
)
async def test_a_fault_that_stays_costs_the_episode_and_is_never_shown_to_the_model(fault, message):
    async with Server(fault) as server:
        with pytest.raises(InfrastructureError, match=message) as caught:
            await asking(server, retries=1, timeout_s=0.2)
    assert caught.value.cause is FailureCause.TOOL
    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (400, "answered 400: out of order"),
        (404, "answered 404"),
        (429, "answered 429"),
        ("nonsense", "gave no documents: "),
        ({"documents": [{"id": "1"}]}, "gave no documents: .*text"),
        ({"results": []}, "gave no documents"),
        ("[" + " " * (5 << 20) + "]", "answered more than"),
    ],
)
async def test_answers_that_no_repetition_mends_are_asked_for_once(answer, message):
    async with Server(answer) as server:
        with pytest.raises(EpisodeError, match=message) as caught:
            await asking(server)
    assert caught.value.cause is FailureCause.TOOL
    assert len(server.asked) == 1


async def test_a_server_that_is_not_there_is_a_fault_of_the_infrastructure():
    async with Server(DOCUMENTS) as server:
        pass
    with pytest.raises(InfrastructureError, match="tool 'search' failed 2 times"):
        await asking(server, retries=1)


async def test_all_episodes_use_one_pool_of_connections_and_closing_it_is_no_end():
    async with Server(DOCUMENTS) as server:
        retriever = HTTPRetriever(server.url, max_connections=2)
        tool = SearchTool(retriever, k=1)
        envs = [Library(tool) for _ in range(10)]
        events = await asyncio.gather(*(event_of(env) for env in envs))
        assert [event.result for event in events] == ["[1] One\nfirst"] * 10
        for _ in range(2):
            await envs[0].close_shared()
            assert (await event_of(envs[0])).ok  # it opens again what it needs, and closes it again below
        await envs[0].close_shared()


def test_a_retriever_serves_one_event_loop_after_the_other():
    async def once():
        async with Server(DOCUMENTS) as server:
            retriever.url = server.url
            ids = await found(retriever, "x")
            await retriever.close()
        return ids

    retriever = HTTPRetriever("http://127.0.0.1/")
    assert [asyncio.run(once()) for _ in range(2)] == [["1", "2"]] * 2


@pytest.mark.parametrize("settings", [{"url": "example.org"}, {"timeout_s": 0}, {"max_connections": 0}])
def test_impossible_settings_are_refused(settings):
    with pytest.raises(UsageError, match="HTTPRetriever"):
        HTTPRetriever(**{"url": "http://x", **settings})


async def test_a_call_that_waits_for_a_dead_server_until_its_deadline_is_no_timeout_of_the_model():
    async with Server("hang") as server:
        retriever = HTTPRetriever(server.url, timeout_s=0.1)
        env = Library(SearchTool(retriever, limits=ToolLimits(retries=100, timeout_s=0.6)))
        with pytest.raises(InfrastructureError, match="gave no answer in 0.1 s"):
            await event_of(env)
        slow = HTTPRetriever(server.url, timeout_s=30)
        event = await event_of(Library(SearchTool(slow, limits=ToolLimits(timeout_s=0.2))))
        assert event.error_kind is ToolErrorKind.TIMEOUT
        await retriever.close()
        await slow.close()
