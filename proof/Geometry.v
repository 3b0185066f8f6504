(* The geometric inequality: how many multiply-adds can touch so few words of Out, In and Ker. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Geometry.
Variables (M A B C : finType) (a : M -> A) (b : M -> B) (c : M -> C).

(* Classes that b and c know. The multiply-adds of class r satisfy the inequality with the factor m r / l r. A
   multiply-add of class r has a weight w r with (w r)^3 m r / l r <= D. *)
Theorem weighted (R : finType) (class : M -> R) (m l w : R -> nat) (D : nat) (V : {set M}) :
  {in V &, forall u v, b u = b v -> class u = class v} ->
  {in V &, forall u v, c u = c v -> class u = class v} ->
  (forall r (S := slice class V r), l r * #|S| ^ 2 <= m r * (#|touched a S| * (#|touched b S| * #|touched c S|))) ->
  (forall r, 0 < l r) -> (forall r, w r ^ 3 * m r <= D * l r) ->
  (\sum_(v in V) w (class v)) ^ 3 <= D * #|V| * (#|touched a V| * #|touched b V| * #|touched c V|).
Proof.
move=> br cr geo l0 wD; rewrite (sum_slices class V) (card_slices class V).
rewrite (eq_bigr (fun r => w r * #|slice class V r|)) => [|r _]; last first.
  rewrite (eq_bigr (fun _ => w r)) => [|v /sliceP[_ ->] //]; by rewrite sum_nat_const mulnC.
apply: leq_trans (hoelder3 (q := D * #|touched a V|) (x := fun r => #|slice class V r|)
  (y := fun r => #|touched b (slice class V r)|) (z := fun r => #|touched c (slice class V r)|) _) _ => [r|].
  have := geo r; set S := slice class V r => /= H.
  have sub : #|touched a S| <= #|touched a V| by apply/subset_leq_card/imsetS/subsetP => v /sliceP[].
  rewrite -(leq_pmul2l (l0 r)) expnMn.
  apply: (@leq_trans (w r ^ 3 * #|S| * (m r * (#|touched a S| * (#|touched b S| * #|touched c S|))))).
    by apply: leq_trans (leq_mul (leqnn (w r ^ 3 * #|S|)) H); apply: eq_leq; rewrite [#|S| ^ 3]expnS; lia.
  apply: (@leq_trans (w r ^ 3 * m r * (#|S| * (#|touched a V| * (#|touched b S| * #|touched c S|))))).
    apply: (@leq_trans (w r ^ 3 * m r * (#|S| * (#|touched a S| * (#|touched b S| * #|touched c S|))))).
      by apply: eq_leq; lia.
    by rewrite leq_mul2l leq_mul2l leq_mul2r sub !orbT.
  by apply: leq_trans (leq_mul (wD r) (leqnn _)) _; apply: eq_leq; lia.
set s := \sum_(i : R) _; have Bs := sum_touched br; have Cs := sum_touched cr.
apply: (@leq_trans (D * #|touched a V| * (s * #|touched b V| * #|touched c V|))).
  by rewrite leq_mul2l leq_mul ?leq_mul ?orbT.
by apply: eq_leq; nia.
Qed.
End Geometry.
