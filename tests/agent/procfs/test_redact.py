"""Command lines lose their secrets before they lose their length."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuagent.procfs.redact import COMMAND_LIMIT_BYTES, MASK, Redactor
from tests.agent.procfs.plain_redact import redacted
from tests.tables import table

Form = Callable[[str, str], list[str]]
SECRET = "h7Qz-93.kLw"


def command(*arguments: str) -> str:
    """Redact with the built-in rules alone."""
    return Redactor().command("\0".join(arguments).encode() + b"\0")


@table(
    "arguments, shown",
    [
        (["py", "--password", "a b", "-v"], f"py --password {MASK} -v"),
        (["py", "--password=a b", "-v"], f"py --password={MASK} -v"),
        (["py", "-password", "x"], f"py -password {MASK}"),
        (["py", "--hf_token", "x"], f"py --hf_token {MASK}"),
        (["py", "--db-passwd=x"], f"py --db-passwd={MASK}"),
        (["py", "--aws-secret-access-key", "x"], f"py --aws-secret-access-key {MASK}"),
        (["env", "X_KEY=YWJjZA==", "py"], f"env X_KEY={MASK} py"),
        (["env", "WANDB_API_KEY=x", "py"], f"env WANDB_API_KEY={MASK} py"),
        (["py", "--env=X_TOKEN=a b"], f"py --env=X_TOKEN={MASK}"),
        (["py", "trainer.api_key=x"], f"py trainer.api_key={MASK}"),
        (["curl", "-H", "Authorization: Bearer x y"], f"curl -H Authorization:{MASK}"),
        (["psql", "postgres://joe:x@db/one"], f"psql postgres://{MASK}@db/one"),
        (["git", "https://x@github.com/a"], f"git https://{MASK}@github.com/a"),
        (["a", "http://h/1,http://joe:x@h/2"], f"a http://h/1,http://{MASK}@h/2"),
        (["a", "http://joe:x@keys.local:80/"], f"a http://{MASK}@keys.local:{MASK}"),
        (["a", '{"api_key": "x", "n": 1}'], f'a {{"api_key":{MASK}'),
        (["a", '["--password", "x", "-v"]'], f'a ["--password", {MASK} "-v"]'),
        (["wandb", "login", "hf_abcdefghijklmnop"], f"wandb login {MASK}"),
        (["a", "AKIAIOSFODNN7EXAMPLE"], f"a {MASK}"),
        (["sh", "-c", "export A_TOKEN=x; run it"], f"sh -c export A_TOKEN={MASK} run it"),
        (["sh", "-c", "run --password 'a b' it"], f"sh -c run --password {MASK} it"),
        (["sh", "-c", "run --password a\\ b it"], f"sh -c run --password {MASK} it"),
        (["sh", "-c", 'run --password a" b"c it'], f"sh -c run --password {MASK} it"),
        (["sh", "-c", 'curl -H "X-Api-Key: a b" h'], f'sh -c curl -H "X-Api-Key:{MASK}" h'),
        (["gunicorn: don't stop --password x"], f"gunicorn: don't stop --password {MASK}"),
        (["py", "--pass", "x"], f"py --pass {MASK}"),
        (["py", "--db-pass", "x"], f"py --db-pass {MASK}"),
        (["env", "DB_PASS=x", "py"], f"env DB_PASS={MASK} py"),
        (["curl", "-u", "joe:x", "h"], f"curl -u joe:{MASK} h"),
        (["sh", "-c", "curl --user joe:x:y h"], f"sh -c curl --user joe:{MASK} h"),
        (["title password is x end"], f"title password is {MASK} end"),
        (["title password = x end"], f"title password = {MASK} end"),
        (["a", "AIzaSyA-h7Qz93kLwAbCdEfGhIjKlMnOpQrStUv"], f"a {MASK}"),
        (["a", "-----BEGIN PRIVATE KEY-----\nx\ny\n-----END PRIVATE KEY-----", "-v"], f"a {MASK} -v"),
        (["a", "data:-----BEGIN RSA PRIVATE KEY-----\nx"], f"a data:{MASK}"),
        (["a", "--data", "-----BEGIN", "PRIVATE", "KEY-----", "x"], f"a --data {MASK}"),
        (["a", "--key", "-----BEGIN", "PRIVATE", "KEY-----", "x"], f"a --key {MASK}"),
        (["curl", "-H", "Cookie: session=x; y=z"], f"curl -H Cookie:{MASK}"),
        (["curl", "-b", "session=x"], f"curl -b session={MASK}"),
        (["azcopy", "https://b/x?sv=1&sig=x%3D"], f"azcopy https://b/x?sv=1&sig={MASK}"),
        (["curl", "--cookie", "session=x"], f"curl --cookie {MASK}"),
        (["set", "VLLM_API_KEY", "x", "-v"], f"set VLLM_API_KEY {MASK} -v"),
        (["sh", "-c", "set 'HF_TOKEN' x"], f"sh -c set 'HF_TOKEN' {MASK}"),
        (["py", "--token", "--h7Qz93kLw", "-v"], f"py --token {MASK} -v"),
        (["py", "--token", "--x7f3a9c2", "-v"], f"py --token {MASK} -v"),
        (["py", "--token", "--Qw", "-v"], f"py --token {MASK} -v"),
        (["title Authorization: Basic x end"], f"title Authorization: Basic {MASK} end"),
        (["py", "--jwt", "x", "-v"], f"py --jwt {MASK} -v"),
        (["py", "--bearer", "x", "-v"], f"py --bearer {MASK} -v"),
        (["py", "--pat", "x", "-v"], f"py --pat {MASK} -v"),
        (["py", "--git-pat", "x", "-v"], f"py --git-pat {MASK} -v"),
        (["py", "--pw", "x", "-v"], f"py --pw {MASK} -v"),
        (["plink", "-pw", "x", "h"], f"plink -pw {MASK} h"),
        (["py", "--credential", "x", "-v"], f"py --credential {MASK} -v"),
        (["py", "--jwt=x", "--pat=y", "--pw=z"], f"py --jwt={MASK} --pat={MASK} --pw={MASK}"),
        (["env", "GH_PAT=x", "DB_PW=x", "py"], f"env GH_PAT={MASK} DB_PW={MASK} py"),
        (["set", "GH_PAT", "x", "-v"], f"set GH_PAT {MASK} -v"),
        (["python", "-c", "run --jwt x it"], f"python -c run --jwt {MASK} it"),
        (["python", "-c", "run(['--bearer', 'x', '-v'])"], f"python -c run(['--bearer', {MASK} '-v'])"),
        (["sh", "-c", "run --pat x --pw 'a b' --pass y it"], f"sh -c run --pat {MASK} --pw {MASK} --pass {MASK} it"),
        (["sh", "-c", "run --credential x; jwt = 'x' it"], f"sh -c run --credential {MASK} jwt = {MASK} it"),
        (["mysql", "-uroot", "-px", "db"], f"mysql -uroot -p{MASK} db"),
        (["/usr/bin/mysqldump", "-pa b", "db"], f"/usr/bin/mysqldump -p{MASK} db"),
        (["docker", "exec", "db", "mariadb-dump", "-px"], f"docker exec db mariadb-dump -p{MASK}"),
        (["sh", "-c", "mysql -u root -px db | wc"], f"sh -c mysql -u root -p{MASK} db | wc"),
        (["sh", "-c", "mysql -p'a b' db"], f"sh -c mysql -p{MASK} db"),
        (["sh", "-c", "mysql '-pa b' db"], f"sh -c mysql '-p{MASK} db"),
        (["sshpass", "-p", "x", "ssh", "-p", "22", "h"], f"sshpass -p {MASK} ssh -p 22 h"),
        (["sshpass", "-px", "ssh", "-p22", "h"], f"sshpass -p{MASK} ssh -p22 h"),
        (["sh", "-c", "sshpass -v -p 'a b' ssh h"], f"sh -c sshpass -v -p {MASK} ssh h"),
        (["c", "https://hooks.slack.com/services/T0AB12CD/B0AB12CD/x9"], f"c https://hooks.slack.com/{MASK}"),
        (
            ["sh", "-c", "curl -d '{}' https://Hooks.Slack.com/workflows/T0AB/x"],
            f"sh -c curl -d '{{}}' https://Hooks.Slack.com/{MASK}",
        ),
        (["c", "https://discord.com/api/webhooks/123456789/x-9_y"], f"c https://discord.com/api/webhooks/{MASK}"),
        (
            ["c", "--to=https://ptb.discordapp.com/api/v10/webhooks/123456789/x?wait=1"],
            f"c --to=https://ptb.discordapp.com/api/v10/webhooks/{MASK}?wait=1",
        ),
    ],
)
def test_secrets_are_hidden_wherever_they_stand(arguments: list[str], shown: str) -> None:
    """PROC-07: options, assignments, headers, URLs, JSON, shell texts and titles are covered."""
    assert command(*arguments) == shown


@table(
    "arguments",
    [
        ["python", "train.py", "--lr", "0.1"],
        ["vllm", "serve", "--tokenizer", "meta/x", "--tokenizer-mode=auto"],
        ["vllm", "serve", "--max-tokens", "512", "--max-num-batched-tokens=8192"],
        ["pip", "install", "git+https://github.com/a/b@v1"],
        ["curl", "https://localhost:8000/v1"],
        ["cite", "--author", "me"],
        ["torchrun", "--nproc-per-node", "8", "a b.py"],
        ["docker", "run", "-u", "1000:1000", "--bypass", "a", "--passes=3"],
        ["python", "-u", "serve.py", "http://h:80/"],
        ["docker", "run", "-e", "HF_TOKEN", "vllm/vllm-openai"],
        ["docker", "run", "--secret", "--s3-endpoint=x", "--token", "--maxModelLen", "--api-key", "--fp16"],
        ["sh", "-c", "export HF_TOKEN && run"],
        ["run", "MAX_TOKENS", "512", "CUDA_VISIBLE_DEVICES", "0", "HF_TOKEN", "-v"],
        ["py", "--path", "a", "--patience", "3", "--passes", "2", "--compat", "x", "--pattern=y", "--bearers", "2"],
        ["env", "PATH=/bin", "PYTHONPATH=a", "py", "--pwr", "3", "--jwts", "a"],
        ["ssh", "-p", "2222", "h"],
        ["docker", "run", "-p8080:80", "mkdir", "-p", "a"],
        ["mysql", "-p", "db"],
        ["mysql", "--port=3306", "-P3306", "db"],
        ["sh", "-c", "mysql db && ssh -p2222 h"],
        ["c", "https://hooks.slack.com/docs", "https://github.com/a/b/settings/webhooks/new"],
    ],
)
def test_ordinary_arguments_are_kept(arguments: list[str]) -> None:
    """What tells two servers apart is not lost to caution."""
    assert command(*arguments) == " ".join(arguments)


def test_an_option_is_not_taken_for_the_value_before_it() -> None:
    """A switch such as `--use-token` does not hide the option that follows."""
    assert command("a", "--use-token", "--port", "80") == "a --use-token --port 80"


def test_redaction_comes_before_the_cut() -> None:
    """PROC-07: a secret that ends behind the bound is hidden as a whole, its start too."""
    shown = command("x" * 200, f"--password={SECRET * 40}")

    assert shown == "x" * 200 + f" --password={MASK}"


def test_a_secret_at_the_end_of_what_is_looked_at_is_dropped() -> None:
    """Half of a URL does not show that it has a password: the word at the cut is left out."""
    shown = command("a", "http://joe:" + SECRET * 1000 + "@host/")

    assert shown == "a ..."


def test_control_characters_and_foreign_bytes_are_escaped() -> None:
    """PROC-07: newline, escape, quote, backslash, direction marks and non-UTF-8 stay one line."""
    shown = Redactor().command(b'a"\\\0\x1b[31m\n\0\xff\0\xe2\x80\xaeb\0\xc3\xa9')

    assert shown == 'a"\\ \\x1b[31m\\n \\xff \\u202eb \u00e9'


def test_the_operators_patterns_are_added() -> None:
    """`processes.redact` hides what the built-in rules cannot know, across words too."""
    redactor = Redactor([r"-p \S+", r"customer-\d+"])

    assert redactor.command(b"mysql\0-p\0x\0customer-17") == f"mysql {MASK} {MASK}"


def test_a_pattern_that_matches_nothing_hides_nothing() -> None:
    """`x*` matches between any two characters; the text is not filled with masks."""
    assert Redactor(["x*"]).command(b"ab xx") == f"ab {MASK}"


def test_a_pattern_that_is_none_is_refused_at_start() -> None:
    """A mistake in the configuration is found when it is loaded, not at the first process."""
    with pytest.raises(ValueError, match="RE2"):
        Redactor(["("])


NAMES = st.sampled_from(["--password", "--api-key", "--hf-token", "--client_secret", "-token", "--x.credential"])
SECRETS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\"'\\@/"), min_size=8).filter(
    lambda secret: not re.match(r"--[a-z]|[=:,]+\Z", secret)
)
FILLERS = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=60))
FORMS: st.SearchStrategy[Form] = st.sampled_from(
    [
        lambda name, secret: [name, secret],
        lambda name, secret: [f"{name}={secret}"],
        lambda name, secret: [f"{name}= {secret} {secret}"],
        lambda name, secret: [name, f"{secret} {secret}"],
        lambda name, secret: [f"{name.strip('-').upper()}={secret}"],
        lambda name, secret: ["--env", f"X_TOKEN={secret}"],
        lambda name, secret: [f"https://user:{secret}@host/path"],
        lambda name, secret: ["sh", "-c", f"run {name} '{secret} {secret}'; exit"],
        lambda name, secret: ["sh", "-c", f'run {name}="{secret} {secret}"; exit'],
    ]
)


@given(FORMS, NAMES, SECRETS, st.integers(0, 300))
def test_no_secret_gets_through(form: Form, name: str, secret: str, before: int) -> None:
    """PROC-07: in every form, at every distance from the bound, the secret is gone."""
    arguments = ["a" * before, *form(name, secret), "end"]

    shown = command(*arguments)

    assert secret not in shown.replace(MASK, "").replace(name, "").replace("a" * before, "")


@given(st.binary(max_size=3000), st.integers(3, 300))
def test_the_result_is_always_short_and_printable(raw: bytes, limit: int) -> None:
    """PROC-07: whatever the bytes, the label is bounded UTF-8 of printable characters."""
    shown = Redactor(limit_bytes=limit).command(raw)

    assert len(shown.encode()) <= limit
    assert shown.isprintable()


@given(FILLERS)
def test_short_clean_text_is_not_cut(words: list[str]) -> None:
    """Nothing is lost below the bound: without secrets and oddities the text is the arguments."""
    words = [word for word in words if word.isalnum() and word.isascii()]
    text = " ".join(words)

    shown = command(*words)

    assert shown == text or (len(text) > COMMAND_LIMIT_BYTES and shown.endswith("..."))


WORDS = """
    --password --api-key key token= tokens=12 max_tokens: auth author= authors --auth = : , Bearer basic x ' " \\ @ { }
    http://u:p@h/ http://h:80/ :// hf_abcdefghijklmnop eyJabcdefghijklmnopqrst AKIAIOSFODNN7EXAMPLE --x --password= [k]
    secret Secret PASSWD \u0130 \u212aey= \u017fecret= tokenizer= \u0131z --env X_TOKEN= _ . sh -c 1234567
    authorization: credential pwd passphrase:
    pass pass= bypass= -u --user --pass --x-pass is joe:x 1000:1000
    -----BEGIN PRIVATE HF_TOKEN 'HF_TOKEN' X_KEY -e && -x --token --h7Q --fp16 --maxLen --a.b=c Cookie:
    AIzaSyA-h7Qz93kLwAb
    --pat --path --pw= jwt= jwt bearer= GH_PAT mysql 'mysql' /bin/mariadb-dump sshpass -p -px -p'a "-px" && ;
    hooks.slack.com/services/T0/B0/x /webhooks/12345/x
"""
OTHERS = ("a" * 60, "a" * 70, " ", "  ", "\t", "\n", "\0", "\0", "\0", "\0--", "\\ ", "\udcff")
PIECES = st.sampled_from([*WORDS.split(), *OTHERS])
LINES = st.one_of(
    st.lists(PIECES, max_size=60).map("".join),
    st.lists(PIECES, max_size=60).map(" ".join),
    st.lists(PIECES, max_size=300).map("\0".join),
    st.lists(st.sampled_from(['"', "'", "a", " ", "\\", "key="]), max_size=400).map("".join),
).map(lambda text: text.encode("utf-8", "surrogateescape"))


@given(st.one_of(LINES, LINES.map(lambda line: (line * 50)[:5000]), st.binary(max_size=300)), st.integers(3, 300))
def test_what_is_not_shown_is_not_needed(raw: bytes, limit: int) -> None:
    """PROC-07: the result is that of the same rules applied to all of the command line."""
    assert Redactor(limit_bytes=limit).command(raw) == redacted(raw, limit)


@given(LINES)
def test_the_plain_rules_hold_with_a_pattern_too(raw: bytes) -> None:
    """PROC-07: a pattern that matches nothing changes nothing, though more is looked at for it."""
    assert Redactor(["never-there"]).command(raw) == redacted(raw, COMMAND_LIMIT_BYTES)


def test_a_pattern_may_match_behind_what_is_shown() -> None:
    """PROC-07: what begins in sight and ends a thousand characters further is hidden as a whole."""
    line = b"\0".join([b"begin", *[b"word"] * 150, b"end", *[b"more"] * 500])
    shown = Redactor([r"begin .* end"]).command(line)

    assert shown.startswith(f"{MASK} more more")
    assert shown.endswith("...")
