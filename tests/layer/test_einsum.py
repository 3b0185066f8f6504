# ruff: noqa: E501 (a table of whole messages)
"""Binary contractions in layer files: their folding, their values, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import contractions

import synth
from synth.base.errors import InputError, UsageError
from synth.codegen.render import render
from synth.launch.reference import expected, shapes
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer, LayerError, layer_file_schema, parse_layer
from synth.planning.plan_file import parse_plan
from synth.runtime.program.sample_data import sample

SCORES = """einsum: "bhqd, bhkd -> bhqk"
extents: {b: 2, h: 3, q: 10, k: 14, d: 9}
"""
SCHEMA = jsonschema.Draft202012Validator(layer_file_schema())


def test_scores_of_attention_are_a_product_per_head() -> None:
    layer = parse_layer(SCORES, "scores.yaml")
    assert layer == Layer.einsum("bhqd,bhkd->bhqk", {"b": 2, "h": 3, "q": 10, "d": 9, "k": 14}, name="scores")
    assert layer.nest.extents == PerAxis(b=10, g=6, c=9, k=14)
    assert layer.output_shape == (2, 3, 10, 14)
    assert str(layer) == "einsum bhqd,bhkd->bhqk, b=2 h=3 q=10 d=9 k=14, float32"
    assert str(layer.contraction) == "In[q,bh,d] * Ker[bh,k,d] -> Out[q,bh,k]"


@pytest.mark.parametrize(
    ("equation", "extents", "folded"),
    [
        ("ik,kj->ij", "In[i,k] * Ker[j,k] -> Out[i,j]", PerAxis(b=2, c=2, k=2)),
        ("a,b->ab", "In[a,1] * Ker[b,1] -> Out[a,b]", PerAxis(b=2, k=2)),
        ("ab,ba->", "In[1,ab] * Ker[1,ab] -> Out[1,1]", PerAxis(c=4)),
        ("ab,ab->ba", "In[1,ba,1] * Ker[ba,1,1] -> Out[1,ba,1]", PerAxis(g=4)),
        (",x->x", "In[1,1] * Ker[x,1] -> Out[1,x]", PerAxis(k=2)),
        ("xAy,yBxC->BAC", "In[A,xy] * Ker[BC,xy] -> Out[A,BC]", PerAxis(b=2, c=4, k=4)),
    ],
)
def test_indices_of_a_class_are_one_loop(equation: str, extents: str, folded: PerAxis) -> None:
    layer = Layer.einsum(equation, dict.fromkeys("".join(c for c in equation if c.isalpha()), 2))
    assert str(layer.contraction) == extents
    assert layer.nest.extents == folded


@settings(deadline=None, max_examples=60)
@given(contractions(), st.booleans())
def test_round_trips(layer: Layer, spaced: bool) -> None:
    equation = layer.equation.replace(",", " , ") if spaced else layer.equation
    data = {"einsum": equation, "extents": dict(layer.index_extents), "dtype": "float64", "name": "x"}
    again = replace(layer, dtype="float64", name="x")
    assert parse_layer(json.dumps(data), "y.yaml") == again
    SCHEMA.validate(data)
    assert Layer.from_json(json.loads(json.dumps(again.to_json())), "p", "x") == again


@settings(deadline=None, max_examples=25)
@given(contractions(), st.integers(1, 6), st.sampled_from(["forward", "training"]))
def test_plans_are_read_back(layer: Layer, procs: int, pass_: str) -> None:
    plan = synth.plan(layer, procs, pass_=pass_)
    assert parse_plan(json.dumps(plan.to_json()), "p") == plan
    assert str(layer.contraction) in synth.report(plan)
    assert layer.equation in render(plan)


@settings(deadline=None, max_examples=60)
@given(contractions())
def test_what_runs_are_compared_with_is_torch_einsum(layer: Layer) -> None:
    """`synth run` compares with the equation, the program with the folded product."""
    plan = synth.plan(layer, 1, pass_="training")
    one, other = (
        sample(name, shape, [range(n) for n in shape], torch.float32, torch.device("cpu"))
        for name, shape in list(shapes(layer).items())[:2]
    )
    product = torch.einsum(
        "bgc,gkc->bgk", one.view(layer.nest.shapes["In"][:3]), other.view(layer.nest.shapes["Ker"][:3])
    )
    found = expected(plan)
    assert torch.equal(found["Out"].view(product.shape), product)
    assert {name: tuple(found[name].shape) for name in ("dIn", "dKer")} == {
        "dIn": shapes(layer)["In"],
        "dKer": shapes(layer)["Ker"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SCORES.replace("-> bhqk", "-> bhqq"), "1:9: einsum 'bhqd, bhkd -> bhqq' has index q twice in the result; take the diagonal before, or use two indices"),
        (SCORES.replace("bhqd", "bhqq"), "1:9: einsum 'bhqq, bhkd -> bhqk' has index q twice in the first operand; take the diagonal before, or use two indices"),
        (SCORES.replace("-> bhqk", "-> bhk"), "1:9: einsum index q is summed in the first operand alone; sum it there before, and leave it out of the equation"),
        (SCORES.replace("-> bhqk", "-> bhqx"), "1:9: einsum index k is summed in the second operand alone; sum it there before, and leave it out of the equation"),
        (SCORES.replace("-> bhqk", "-> bhqkx"), "1:9: einsum index x of the result is in no operand; leave it out, or expand afterwards"),
        (SCORES.replace(", bhkd", ", bhkd, hb"), "1:9: einsum 'bhqd, bhkd, hb -> bhqk' has 3 operands, not two; contract two at a time"),
        (SCORES.replace(", bhkd", ""), "1:9: einsum 'bhqd -> bhqk' has one operand, not two; a sum or a transposition needs no plan"),
        (SCORES.replace("-> bhqk", ""), "1:9: einsum 'bhqd, bhkd ' lacks the indices of the result; write two operands and the result, such as bhqd,bhkd->bhqk"),
        (SCORES.replace("bhqd", "...qd"), "1:9: einsum '...qd, bhkd -> bhqk' has an ellipsis; write an index for each of its dimensions"),
        (SCORES.replace("bhqd", "bhq2"), "1:9: einsum 'bhq2, bhkd -> bhqk' has '2' in place of an index, which is one letter; write two operands and the result, such as bhqd,bhkd->bhqk"),
        (SCORES.replace("b: 2, ", ""), "2:10: einsum extents lack index b; write its extent"),
        (SCORES.replace("b: 2", "b: 2, x: 3"), "2:20: einsum extents have x, which is no index of the equation; leave it out"),
        (SCORES.replace("b: 2", "b: 0"), "2:14: einsum extent b is 0, not a whole number from 1 to 1099511627776; write another"),
        (SCORES.replace("b: 2", "b: two"), "2:14: extent b is two, not an integer; write it in decimal digits"),
        (SCORES.replace("b: 2", "b: [2]"), "2:14: extent b is a list; write an integer"),
        (SCORES.replace("d: 9", "d: 1099511627776"), "1:9: einsum indices bhd together have extent 6597069766656, more than 1099511627776; use smaller ones"),
        ('einsum: "ab,bc->ac"\n', "1:1: einsum lacks extents; write extents: and the extent of each index"),
        ('einsum: "ab,bc->ac"\nextents: 3\n', "2:10: extents is 3; write the extent of each index, such as {b: 8, h: 16}"),
        ("einsum: [ab, bc]\nextents: {a: 1}\n", "1:9: einsum is a list; write one text"),
        (SCORES + "dtype: int8\n", "3:8: dtype int8 is unknown; known are float64, float32, float16, bfloat16"),
        (SCORES + "groups: 2\n", "3:1: unknown key groups; known are conv1d, conv2d, conv3d, matmul, einsum, name, extents, dtype"),
        ("extents: {a: 1}\nmatmul: {m: 1, n: 2, k: 3}\n", "1:1: unknown key extents; known are conv1d, conv2d, conv3d, matmul, einsum, name"),
    ],
)  # fmt: skip
def test_what_is_no_binary_contraction_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_layer(text, "scores.yaml")
    assert str(caught.value) == "scores.yaml:" + message


def test_fields_agree_with_the_equation() -> None:
    layer = Layer.einsum("ab,bc->ac", {"a": 2, "b": 3, "c": 4})
    for wrong, said in (
        ({"input": (2, 4)}, r"einsum input is \(2, 4\), but ab,bc->ac makes it \(2, 3\)"),
        ({"out_channels": 5}, "einsum out_channels is 5, but ab,bc->ac makes it 4"),
        ({"transposed": True}, "exchange the operands instead"),
        ({"index_extents": 7}, "einsum extents are 7; write the extent of each index"),
        ({"equation": None}, "einsum None is no text; write two operands and the result"),
        ({"kernel": (3,)}, "einsum kernel has 1 entry, needs none"),
    ):
        with pytest.raises(LayerError, match=said):
            replace(layer, **wrong)  # type: ignore[arg-type]
    with pytest.raises(LayerError, match="conv1d equation is 'ab,bc->ac'; leave it out"):
        Layer("conv1d", (1, 2, 3), 4, 1, equation="ab,bc->ac")  # type: ignore[arg-type]


def test_a_module_is_refused() -> None:
    plan = synth.plan(Layer.einsum("ab,bc->ac", {"a": 2, "b": 3, "c": 4}), 2, pass_="training")
    with pytest.raises(UsageError, match="an einsum has two operands and no weights, so it is no module"):
        render(plan, module=True)
