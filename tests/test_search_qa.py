"""The search_qa environment: the invented world, its questions, the tools, rewards, files of one's own."""

import functools
import inspect
import json
import re
import time
from itertools import pairwise
from typing import Any, get_type_hints

import pytest

from miles_agents import Episode, Message, Reply
from miles_agents.checks.env import check_env, check_tasks, play
from miles_agents.envs.search_qa.env import SearchQA
from miles_agents.envs.search_qa.scoring import exact_match, f1, normalised_answer
from miles_agents.envs.search_qa.world import SPLITS, World
from miles_agents.errors import ConfigError, DataError, UsageError
from miles_agents.registry import environments
from miles_agents.types import Task, ToolCall

pytest.importorskip("bm25s", reason="needs the extra `search`")
SMALL = {"things": 120, "train_size": 20, "validation_size": 8, "test_size": 8}


@pytest.fixture(scope="module")
def world():
    return World(300, seed=0)


def documents(world):
    return {document.id: document for document in world.documents}


# The world


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_each_document_of_a_chain_names_the_next_and_the_last_the_answer(world, split, hops):
    texts = documents(world)
    for question in world.questions(split, [hops], 200):
        chain = [texts[identity] for identity in question.chain]
        assert len(chain) == hops
        assert question.text.endswith(f" of {question.about}.")
        assert question.about[1:] == chain[0].title[1:]
        for document, following in pairwise(chain):
            assert tells(document, following.title)
        assert tells(chain[-1], question.answer)


def tells(document, name):
    return f" {name.casefold()} " in spaced(document.text)


@functools.cache
def spaced(text):
    return f" {re.sub('[^a-z ]', ' ', text.casefold())} "


@pytest.mark.parametrize("split", SPLITS)
def test_no_document_names_both_what_is_asked_about_and_the_answer(world, split):
    for question in world.questions(split, [2, 3], 300):
        both = (question.about, question.answer)
        assert not [each for each in world.documents if all(tells(each, name) for name in both)]
        assert question.answer[1:] not in question.text


@pytest.mark.parametrize("split", SPLITS)
def test_nothing_but_the_last_document_of_a_chain_names_the_answer(world, split):
    texts = documents(world)
    for question in world.questions(split, [3], 300):
        for identity in question.chain[:-1]:
            assert not tells(texts[identity], question.answer)


def test_splits_share_no_names_and_no_documents_mention_things_of_two(world):
    named = {}
    for split in SPLITS:
        questions = world.questions(split, [1], 10_000)
        named[split] = {name for each in questions for name in (each.about, each.answer)}
    assert all(len(names) > 20 for names in named.values())
    assert not named["train"] & named["validation"]
    assert not named["train"] & named["test"]
    assert not named["validation"] & named["test"]
    for document in world.documents:
        about = {split for split in SPLITS if any(tells(document, name) for name in named[split])}
        assert len(about) == 1 or not any(document.title[1:] == name[1:] for each in named.values() for name in each)


def test_titles_and_ids_of_documents_are_unique_and_ids_say_nothing(world):
    assert len({document.title for document in world.documents}) == len(world.documents)
    assert sorted(int(document.id[1:]) for document in world.documents) == list(range(1, len(world.documents) + 1))
    train = [int(identity[1:]) for each in world.questions("train", [1], 10_000) for identity in each.chain]
    assert min(train) < 20
    assert max(train) > len(world.documents) - 20


def test_questions_are_different_and_mixed_evenly_until_they_run_out(world):
    questions = world.questions("test", [2, 3], 200)
    assert len({question.text for question in questions}) == 200
    assert [len(question.chain) for question in questions[:20]] == [2, 3] * 10
    everything = world.questions("test", [2, 3], 10**6)
    assert everything[:200] == questions
    assert len({question.text for question in everything}) == len(everything)


def test_the_world_depends_on_seed_and_size_only(world):
    assert World(300, seed=0).documents == world.documents
    assert World(300, seed=0).questions("train", [2], 50) == world.questions("train", [2], 50)
    assert World(300, seed=1).questions("train", [2], 50) != world.questions("train", [2], 50)


def test_a_large_world_is_made_in_seconds():
    started = time.perf_counter()
    world = World(4_000)
    assert len(world.documents) == 6_000
    assert len(world.questions("train", [2, 3], 8192)) == 8192
    assert time.perf_counter() - started < 10  # 1.5 s on an idle core


# The environment


def test_it_is_registered():
    assert environments.get("search_qa") is SearchQA


async def test_it_keeps_the_contract_of_environments():
    await check_env(SearchQA(**SMALL), tasks_per_split=6)


async def test_the_oracle_scores_full_on_every_task_and_is_shown_all_the_evidence():
    env = SearchQA(f1_weight=0.3, evidence_weight=0.2, answer_weight=0.5, **SMALL)
    for split in SPLITS:
        for task in env.tasks(split):
            results = await play(env, task, env.oracle(task), seed=0)
            assert results[-1].info["rewards"] == {"answer": 1.0, "f1": 1.0, "evidence": 1.0}
            assert results[-1].reward == pytest.approx(1.0, abs=1e-12)
            assert all(event.ok for result in results for event in result.info["tool_events"])


async def test_a_search_for_a_title_finds_its_document():
    env = SearchQA(**SMALL)
    task = env.tasks("train")[0]
    await env.reset(seed=0, options={"task": task})
    for document in env.library.documents[:100]:
        assert (await env.library.retriever.search(document.title, 3))[0] == document
    await env.close()


def calls(*each):
    made = [ToolCall(id=f"c{n}", name=name, arguments=arguments, raw="…") for n, (name, arguments) in enumerate(each)]
    return Reply(text="…", calls=tuple(made))


async def test_read_shows_a_document_whole_and_refuses_what_is_none():
    env = SearchQA(**SMALL)
    await env.reset(seed=0, options={"task": env.tasks("train")[0]})
    step = await env.step(calls(("read", {"id": "d1"}), ("read", {"id": "[d2]"}), ("read", {"id": "d0"})))
    first, second, third = step.observation
    assert first.text == f"[d1] {env.library.documents[0].title}\n{env.library.documents[0].text}"
    assert second.text.startswith("[d2] ")
    assert "no document 'd0'; search first, ids stand in brackets" in third.text
    assert [event.ok for event in step.info["tool_events"]] == [True, True, False]
    await env.close()


async def test_evidence_is_the_share_of_documents_shown_by_search_or_read():
    env = SearchQA(hops=3, k=1, **SMALL)
    task = env.tasks("test")[0]
    one, two, _ = task.metadata["evidence"]
    title = env.library.by_id[one].title
    results = await play(
        env, task, [calls(("search", {"query": title})), calls(("read", {"id": two})), Reply.of("\\boxed{?}")], seed=0
    )
    assert results[-1].info["rewards"] == {"answer": 0.0, "f1": 0.0, "evidence": pytest.approx(2 / 3, abs=1e-12)}
    assert results[-1].reward == 0.0


async def test_an_answer_without_a_search_can_be_right_but_has_no_evidence():
    env = SearchQA(**SMALL)
    task = env.tasks("test")[0]
    (result,) = await play(env, task, [Reply.of(f"\\boxed{{{task.answer}}}")], seed=0)
    assert result.info["rewards"] == {"answer": 1.0, "f1": 1.0, "evidence": 0.0}


def test_tasks_are_sized_and_told_what_to_do():
    env = SearchQA(hops=2, answer_form="line", **SMALL)
    assert {split: len(tasks) for split, tasks in check_tasks(env).items()} == {"train": 20, "validation": 8, "test": 8}
    system, question = env.tasks("train")[0].prompt
    assert system.text.endswith("Give the final answer, a few words, in a last line of its own: Answer: …")
    assert question.text.startswith("Name the ")
    assert [message.role for message in SearchQA(system_prompt="", **SMALL).tasks("train")[0].prompt] == ["user"]


def test_the_default_splits_have_their_sizes():
    env = SearchQA()
    assert {split: len(env.tasks(split)) for split in SPLITS} == {"train": 1024, "validation": 128, "test": 256}


def test_environments_share_one_library():
    assert SearchQA(**SMALL).library is SearchQA(**SMALL).library
    assert SearchQA(**{**SMALL, "things": 121}).library is not SearchQA(**SMALL).library


# Scoring


@pytest.mark.parametrize(
    ("answer", "golds", "exact", "score"),
    [
        ("the Amber Guild", ["Amber Guild"], 1.0, 1.0),
        ("  AMBER-guild!", ["amberguild"], 1.0, 1.0),
        ("\\text{Amber Guild}", ["Amber Guild"], 1.0, 1.0),
        ("Amber", ["Amber Guild"], 0.0, 2 / 3),  # precision 1, recall 1/2
        ("the old Amber Guild of Mame", ["Amber Guild"], 0.0, 4 / 7),  # 2 of 5 words, 2 of 2
        ("Amber Amber", ["Amber Guild"], 0.0, 0.5),  # a word counts as often as both have it
        ("river Kel", ["Lake Kel", "the river Kel"], 1.0, 1.0),
        ("yes it is", ["yes"], 0.0, 0.0),
        ("yes", ["no"], 0.0, 0.0),
        ("Yes.", ["yes"], 1.0, 1.0),
        ("", ["the"], 0.0, 0.0),
        ("the", ["a"], 0.0, 0.0),
        ("Amber", [], 0.0, 0.0),
    ],
)
def test_answers_are_compared_without_case_punctuation_and_articles(answer, golds, exact, score):
    assert exact_match(answer, golds) == exact
    assert f1(answer, golds) == pytest.approx(score, abs=1e-12)


def test_normalising_twice_changes_nothing():
    for text in ("The “Amber” Guild, of a Mame…", "\\text{An X}", "$5$", "É ﬁn"):
        assert normalised_answer(normalised_answer(text)) == normalised_answer(text)


# Files of one's own


def hotpot_rows(count=12):
    return [
        {
            "id": f"own-{n}",
            "question": f"Where was the {word(n)} author of {word(n)}{n} living?",
            "answer": f"Town {word(n)}",
            "supporting_facts": [[f"Author {word(n)}", 0], [f"Book {word(n)}", 1], [f"Author {word(n)}", 2]],
            "context": [
                [f"Book {word(n)}", [f"{word(n)}{n} is a book.", f"It is by Author {word(n)}."]],
                [f"Author {word(n)}", [f"Author {word(n)} lived in Town {word(n)}."]],
            ],
        }
        for n in range(count)
    ]


def word(n):
    return "".join("abcdefghij"[int(digit)] for digit in f"{n:03}").capitalize()


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def folder(tmp_path, rows=None):
    rows = rows or hotpot_rows()
    for split, part in (("train", rows[:6]), ("dev", rows[6:9]), ("test", rows[9:])):
        write(tmp_path / f"{split}.jsonl", part)
    return str(tmp_path)


async def test_rows_like_hotpotqa_are_played_over_their_own_documents(tmp_path):
    env = SearchQA(data=folder(tmp_path))
    await check_env(env)
    assert len(env.library.documents) == 24
    task = env.tasks("test")[0]
    assert task.prompt[-1] == Message.user(hotpot_rows()[9]["question"])
    titles = [env.library.by_id[identity].title for identity in task.metadata["evidence"]]
    assert titles == [f"Author {word(9)}", f"Book {word(9)}"]
    results = await play(env, task, env.oracle(task), seed=0)
    assert results[-1].info["rewards"] == {"answer": 1.0, "f1": 1.0, "evidence": 1.0}


def test_the_columns_of_parquet_files_of_hotpotqa_are_read_too(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            **row,
            "supporting_facts": {"title": [t for t, _ in row["supporting_facts"]], "sent_id": [0, 1, 2]},
            "context": {"title": [t for t, _ in row["context"]], "sentences": [s for _, s in row["context"]]},
        }
        for row in hotpot_rows()
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "test.parquet")
    whole = folder(tmp_path / "jsonl") if (tmp_path / "jsonl").mkdir() is None else ""
    from_parquet, from_jsonl = SearchQA(data=str(tmp_path)), SearchQA(data=whole)
    assert {each.title: each.text for each in from_parquet.library.documents} == {
        each.title: each.text for each in from_jsonl.library.documents
    }
    assert len(from_parquet.tasks("test")[0].metadata["evidence"]) == 2


async def test_a_corpus_of_its_own_and_several_right_answers(tmp_path):
    corpus = write(tmp_path / "corpus.jsonl", [{"id": "x7", "title": "Kel", "text": "Kel is a town of 9,000."}])
    rows = [{"question": "How many live in Kel?", "golden_answers": ["9,000", "nine thousand"]}]
    write(tmp_path / "test.jsonl", rows)
    env = SearchQA(data=str(tmp_path / "test.jsonl").replace("test", "{split}"), corpus=corpus)
    (task,) = env.tasks("test")
    assert (task.answer, task.metadata) == ("9,000", {"other_answers": ["nine thousand"], "evidence": []})
    for answer in ("9000", "Nine thousand."):
        (result,) = await play(env, task, [Reply.of(f"\\boxed{{{answer}}}")], seed=0)
        assert result.info["rewards"] == {"answer": 1.0, "f1": 1.0}
    results = await play(env, task, [calls(("search", {"query": "Kel"})), Reply.of("no box")], seed=0)
    assert results[0].observation[0].text == "[x7] Kel\nKel is a town of 9,000."
    assert results[-1].reward == 0.0


def test_titles_that_are_in_no_document_are_no_evidence(tmp_path):
    rows = hotpot_rows()
    rows[9]["supporting_facts"].append(["Nowhere", 0])
    env = SearchQA(data=folder(tmp_path, rows))
    assert len(env.tasks("test")[0].metadata["evidence"]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corpus": "no.jsonl"}, r"env.corpus: no file no.jsonl"),
        ({}, r"test.jsonl:1: no documents in the column 'context'; give a file of documents: env.corpus=PATH"),
    ],
)
def test_missing_documents_say_what_to_type(tmp_path, options, message):
    write(tmp_path / "test.jsonl", [{"question": "Who?", "answer": "Kel", "context": "Kel"}])
    with pytest.raises(DataError, match=message):
        SearchQA(data=str(tmp_path), **options).tasks("test")


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hops": 5}, r"env.hops=5: give a number from 1 to 4, or a list of them"),
        ({"hops": []}, r"env.hops=\[\]"),
        ({"hops": "2"}, r"env.hops='2'"),
        ({"hops": [2, 2]}, r"env.hops=\[2, 2\]"),
        ({"things": 5}, r"env.things=5: it must be at least 100"),
        ({"k": 0}, r"env.k=0: it must be at least 1"),
        ({"max_turns": 0}, r"env.max_turns=0"),
        ({"train_size": 0}, r"env.train_size=0"),
        ({"f1_weight": float("nan")}, r"env.f1_weight=nan"),
        ({"corpus": "c.jsonl"}, r"env.corpus=c.jsonl without questions about it: give env.data=PATH too"),
        ({"answer_form": "boxed"}, r"env.answer_form: unknown value 'boxed'"),
    ],
)
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        SearchQA(**options)


def test_more_questions_than_the_world_gives_are_refused():
    with pytest.raises(ConfigError, match=r"env.test_size=100000: a world of env.things=120 gives \d+ questions"):
        SearchQA(**{**SMALL, "test_size": 100_000}).tasks("test")


def test_every_argument_is_typed_for_configuration_and_documented():
    hints = get_type_hints(SearchQA.__init__)
    hints.pop("return")
    assert hints.pop("hops") is Any
    assert {name: hint for name, hint in hints.items() if hint not in {int, float, str, str | None, int | None}} == {}
    described = (inspect.getdoc(SearchQA) or "").partition("Args:")[2]
    assert [name for name in (*hints, "hops") if f"\n    {name}: " not in described] == []


async def test_rewards_take_the_tasks_own_answers():
    env = SearchQA(**SMALL)
    task = Task(id="t", prompt=(Message.user("?"),), answer="Kel", metadata={"other_answers": ["Kell"]})
    assert env.reward(Episode(task=task, replies=[Reply.of("\\boxed{kell}")])) == {"answer": 1.0, "f1": 1.0}
    assert env.reward(Episode(task=task, replies=[Reply.of("kell")])) == {"answer": 0.0, "f1": 0.0}
