(* The geometric inequality: how many multiply-adds can touch so few words of Out, In and Ker. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Geometry.
Variables (M A B C : finType) (a : M -> A) (b : M -> B) (c : M -> C).

(* Loomis and Whitney: b and c know z; a and z know the multiply-add; b and c know it, too. *)
Lemma loomis_whitney (Z : finType) (z : M -> Z) (V : {set M}) :
  {in V &, forall u v, a u = a v -> z u = z v -> u = v} ->
  {in V &, forall u v, b u = b v -> c u = c v -> u = v} ->
  {in V &, forall u v, b u = b v -> z u = z v} ->
  {in V &, forall u v, c u = c v -> z u = z v} ->
  #|V| ^ 2 <= #|touched a V| * (#|touched b V| * #|touched c V|).
Proof.
move=> az bc bz cz; rewrite (card_slices z V).
apply: leq_trans (hoelder2 (q := #|touched a V|) (g := fun i => #|touched b (slice z V i)|)
  (h := fun i => #|touched c (slice z V i)|) _) _ => [i|]; last first.
  by rewrite leq_mul2l leq_mul ?sum_touched ?orbT.
rewrite -mulnn; apply: leq_mul.
  rewrite -(card_in_imset (f := a) (D := slice z V i)).
    by apply/subset_leq_card/imsetS/subsetP => v /sliceP[].
  by move=> u v /sliceP[uV ui] /sliceP[vV vi] e; apply: az; rewrite ?ui ?vi.
rewrite -(card_in_imset (f := fun v => (b v, c v)) (D := slice z V i)).
  rewrite -cardsX; apply/subset_leq_card/subsetP => _ /imsetP[v vs ->]; rewrite inE /=.
  by apply/andP; split; apply: imset_f.
by move=> u v /sliceP[uV _] /sliceP[vV _] [e1 e2]; apply: bc.
Qed.

(* The same for multiply-adds of several colours. It is enough that b and c know z within a colour, and so on. If a
   and c together know the colour, the factor is the number of colours. *)
Theorem coloured (T Z : finType) (colour : M -> T) (z : M -> Z) (V : {set M}) :
  {in V &, forall u v, colour u = colour v -> a u = a v -> z u = z v -> u = v} ->
  {in V &, forall u v, colour u = colour v -> b u = b v -> c u = c v -> u = v} ->
  {in V &, forall u v, colour u = colour v -> b u = b v -> z u = z v} ->
  {in V &, forall u v, colour u = colour v -> c u = c v -> z u = z v} ->
  (forall u v u' v', colour u = colour v -> colour u' = colour v' ->
     a u = a u' -> c v = c v' -> colour u = colour u') ->
  #|V| ^ 2 <= #|touched colour V| * (#|touched a V| * (#|touched b V| * #|touched c V|)).
Proof.
move=> az bc bz cz ac; rewrite (card_slices colour V); set S := slice colour V.
apply: leq_trans (hoelder2 (q := 1) (g := fun t => t \in touched colour V : nat)
  (h := fun t => #|touched a (S t)| * (#|touched b V| * #|touched c (S t)|)) _) _ => [t|]; last first.
  rewrite mul1n; apply: leq_mul.
    by rewrite -sum1_card [X in _ <= X]big_mkcond; apply: leq_sum => t _; case: (t \in _).
  rewrite (eq_bigr (fun t => #|touched b V| * #|setX (touched a (S t)) (touched c (S t))|)); last first.
    by move=> t _; rewrite cardsX mulnCA.
  rewrite -big_distrr mulnCA leq_mul2l -cardsX disjoint_sum ?orbT // => [t t' [wa wc]|t].
    rewrite !inE /= => /andP[/imsetP[u /sliceP[_ <-] ->] /imsetP[v /sliceP[_ e] ->]].
    move=> /andP[/imsetP[u' /sliceP[_ <-] eu] /imsetP[v' /sliceP[_ e'] ev]].
    by apply: (ac u v u' v').
  by apply: setXS; apply: imsetS; apply/subsetP => v /sliceP[].
rewrite mul1n; case: (posnP #|S t|) => [->|]; first by rewrite exp0n.
case/card_gt0P => v0 /sliceP[v0V <-]; rewrite imset_f // mul1n.
have sub : S (colour v0) \subset V by apply/subsetP => v /sliceP[].
apply: leq_trans (@loomis_whitney Z z (S (colour v0)) _ _ _ _) _ => [u v|u v|u v|u v|].
- by move=> /sliceP[uV eu] /sliceP[vV ev]; apply: az; rewrite ?eu ?ev.
- by move=> /sliceP[uV eu] /sliceP[vV ev]; apply: bc; rewrite ?eu ?ev.
- by move=> /sliceP[uV eu] /sliceP[vV ev]; apply: bz; rewrite ?eu ?ev.
- by move=> /sliceP[uV eu] /sliceP[vV ev]; apply: cz; rewrite ?eu ?ev.
by rewrite leq_mul2l leq_mul2r subset_leq_card ?imsetS ?orbT.
Qed.

(* Classes that b and c know. The multiply-adds of class r satisfy the inequality with the factor m r. A multiply-add
   of class r has a weight w r with (w r)^3 m r <= D. *)
Theorem weighted (R : finType) (class : M -> R) (m w : R -> nat) (D : nat) (V : {set M}) :
  {in V &, forall u v, b u = b v -> class u = class v} ->
  {in V &, forall u v, c u = c v -> class u = class v} ->
  (forall r (S := slice class V r), #|S| ^ 2 <= m r * (#|touched a S| * (#|touched b S| * #|touched c S|))) ->
  (forall r, w r ^ 3 * m r <= D) ->
  (\sum_(v in V) w (class v)) ^ 3 <= D * #|V| * (#|touched a V| * #|touched b V| * #|touched c V|).
Proof.
move=> br cr geo wD; rewrite (sum_slices class V) (card_slices class V).
rewrite (eq_bigr (fun r => w r * #|slice class V r|)) => [|r _]; last first.
  rewrite (eq_bigr (fun _ => w r)) => [|v /sliceP[_ ->] //]; by rewrite sum_nat_const mulnC.
apply: leq_trans (hoelder3 (q := D * #|touched a V|) (x := fun r => #|slice class V r|)
  (y := fun r => #|touched b (slice class V r)|) (z := fun r => #|touched c (slice class V r)|) _) _ => [r|].
  have := geo r; set S := slice class V r => /= H.
  have sub : #|touched a S| <= #|touched a V| by apply/subset_leq_card/imsetS/subsetP => v /sliceP[].
  rewrite expnMn [X in _ * X]expnS mulnCA; apply: leq_trans (leq_mul (leqnn _) (leq_mul (leqnn _) H)) _.
  rewrite mulnA [X in _ <= X]mulnA.
  apply: (@leq_trans (#|S| * (w r ^ 3 * m r) * (#|touched a V| * (#|touched b S| * #|touched c S|)))).
    by rewrite mulnA -!mulnA leq_mul2l !leq_mul2l leq_mul2r sub !orbT.
  apply: (@leq_trans (#|S| * D * (#|touched a V| * (#|touched b S| * #|touched c S|)))).
    by rewrite leq_mul2r leq_mul2l wD !orbT.
  by apply: eq_leq; nia.
set s := \sum_(i : R) _; have Bs := sum_touched br; have Cs := sum_touched cr.
apply: (@leq_trans (D * #|touched a V| * (s * #|touched b V| * #|touched c V|))).
  by rewrite leq_mul2l leq_mul ?leq_mul ?orbT.
by apply: eq_leq; nia.
Qed.
End Geometry.

