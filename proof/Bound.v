(* The universal lower bound of docs/bounds.md, for every execution of a convolution. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Geometry Execution Segments Schedule Convolution.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Bound.
(* The layer: axis d has N d outputs and n d taps, the stride sigma d and the dilation delta d. A matrix product has D
   = 0 axes. `work` are the multiply-adds with a real input element; padding is left out. *)
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.   (* filters and channels of one group *)
Local Notation Madd := (Madd N n Sample Group Filter Channel).
Local Notation out := (@out _ N n Sample Group Filter Channel).
Local Notation inp := (@inp _ N n sigma delta delta_pos Sample Group Filter Channel).
Local Notation ker := (@ker _ N n Sample Group Filter Channel).
Local Notation group := (@group _ N n Sample Group Filter Channel).
Local Notation class := (@class _ N n sigma delta sigma_pos Sample Group Filter Channel).
Variable work : {set Madd}.

(* The words that some multiply-add touches. *)
Definition words := #|touched out work| + #|touched inp work| + #|touched ker work|.

(* Weights of the residue classes with w^3 C^2 <= 1, written with a common denominator: w^3 C^2 <= Q. *)
Variables (w : Class sigma -> nat) (Q : nat).
Hypothesis weights : forall rho, w rho ^ 3 * constant N n delta rho <= Q.

(* Inequality (2): a sum S of words is at least three totals whose product is H^3 / (Q q) or more, and of which none
   is below its floor. H is the sum of the weights of all multiply-adds. *)
Definition bound (q S : nat) := exists x y z,
  [/\ #|touched out work| <= x, #|touched inp work| <= y & #|touched ker work| <= z] /\
  (\sum_(v in work) w (class v)) ^ 3 <= Q * q * (x * y * z) /\ x + y + z <= S.

Lemma bound_le q q' S S' : bound q S -> q <= q' -> S <= S' -> bound q' S'.
Proof.
move=> [x [y [z [f [v s]]]]] qq ss; exists x, y, z; do !split=> //; last exact: leq_trans ss.
by apply: leq_trans v _; rewrite leq_mul2r leq_mul2l qq !orbT.
Qed.

(* Accessed words: every part of the work (a process, or one of its segments) pays for each word that it touches. *)
Theorem accessed_bound (Part : finType) (does : Madd -> Part) (q : nat) :
  (forall i g, #|slice group (slice does work i) g| <= q) ->
  bound q (total work does out + total work does inp + total work does ker).
Proof.
by move=> cap; apply: (accessed (group := group)) cap => [u v []|u v []|u v []|V] //; exact: all_classes.
Qed.

(* Received words: P processes with memories of mem words, none of which performs more than cap multiply-adds, cut
   their work into cuts + 1 segments of at most q multiply-adds of one group. *)
Theorem universal_bound (P : finType) (mem cap : nat) (e : execution out inp ker work P mem cap)
    (cuts step size q : nat) :
  cap <= step * cuts.+1 -> (forall g, #|slice group work g| <= size) -> minn step size <= q ->
  bound q (all_received e + #|P| * cuts * mem + words).
Proof.
move=> steps sizes le; have [s moved_le] := cut e steps sizes.
apply: (@bound_le (minn step size) _ (moved s + #|P| * cuts * mem + words)) le _; last by rewrite !leq_add2r.
by apply: received_enough => [u v []|u v []|u v []|V] //; exact: all_classes.
Qed.

(* The same for the process that receives most. *)
Theorem most_bound (P : finType) (mem cap : nat) (e : execution out inp ker work P mem cap)
    (cuts step size q : nat) :
  cap <= step * cuts.+1 -> (forall g, #|slice group work g| <= size) -> minn step size <= q ->
  bound q (#|P| * most_received e + #|P| * cuts * mem + words).
Proof.
move=> steps sizes le; apply: bound_le (universal_bound e steps sizes le) (leqnn q) _.
by rewrite !leq_add2r average.
Qed.
End Bound.

Section Convolution.
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.
Variable work : {set Madd N n Sample Group Filter Channel}.
Variables (P : finType) (mem cap : nat).
Variable e : execution (@out _ N n _ _ _ _) (@inp _ N n sigma delta delta_pos _ _ _ _) (@ker _ N n _ _ _ _)
  work P mem cap.

(* A layer of F multiply-adds, with one constant m, the product over axes of min(outputs, taps), and without floors:
   27 F^3 <= m q (received + P (n-1) M + |Out| + |In| + |Ker|)^3 for n segments of q multiply-adds. *)
Theorem convolution (cuts q : nat) : cap <= q * cuts.+1 ->
  27 * #|work| ^ 3 <= (\prod_d minn (N d) (n d)) * q *
    (#|P| * most_received e + #|P| * cuts * mem + words sigma delta_pos work) ^ 3.
Proof.
move=> steps; set m := \prod_d _.
have weights (rho : Class sigma) : 1 ^ 3 * constant N n delta rho <= m by rewrite mul1n constant_le.
have sizes g : #|slice (@group _ N n _ _ _ _) work g| <= #|work| by apply/subset_leq_card/subsetP => v /sliceP[].
have [x [y [z [_ [v s]]]]] := most_bound (w := fun=> 1) sigma_pos weights e steps sizes (geq_minl _ _).
rewrite sum1_card in v; apply: leq_trans (no_floor v) _.
by rewrite leq_mul2l leq_exp2r // s orbT.
Qed.

(* Without a memory limit: n = 1. *)
Corollary memory_independent : 27 * #|work| ^ 3 <= (\prod_d minn (N d) (n d)) * cap *
  (#|P| * most_received e + words sigma delta_pos work) ^ 3.
Proof. by have := @convolution 0 cap; rewrite muln1 muln0 mul0n addn0; apply. Qed.
End Convolution.
