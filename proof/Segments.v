(* Segments of work: the words that they access, and the words that processes with limited memories receive. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Geometry.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Processes.
(* A set `work` of multiply-adds; each touches three words. The weights satisfy the geometric inequality. *)
Variables (M A B C : finType) (a : M -> A) (b : M -> B) (c : M -> C) (work : {set M}) (w : M -> nat) (Q : nat).
(* All three words know the group. *)
Variables (G : finType) (group : M -> G).
Hypotheses (ag : forall u v, a u = a v -> group u = group v) (bg : forall u v, b u = b v -> group u = group v).
Hypothesis cg : forall u v, c u = c v -> group u = group v.
Hypothesis geometry : forall V : {set M},
  (\sum_(v in V) w v) ^ 3 <= Q * #|V| * (#|touched a V| * #|touched b V| * #|touched c V|).

(* Inequality (2), if no part of the work has more than q multiply-adds, for a sum S of accesses: S is at least the
   sum of three totals with this product, each at least the words that are touched at all. *)
Definition enough (q S : nat) := exists x y z,
  [/\ #|touched a work| <= x, #|touched b work| <= y & #|touched c work| <= z] /\
  (\sum_(v in work) w v) ^ 3 <= Q * q * (x * y * z) /\ x + y + z <= S.

Section Parts.
(* The work is cut into parts: what a process does, or what it does in a segment. No part has more than q multiply-
   adds of one group. *)
Variables (P : finType) (does : M -> P) (q : nat).
Definition at_most := forall p g, #|slice group (slice does work p) g| <= q.

(* The words of one tensor that a part touches; their number over all parts. *)
Definition accesses (W : finType) (f : M -> W) p := touched f (slice does work p).
Definition total (W : finType) (f : M -> W) := \sum_p #|accesses f p|.

Lemma total_floor (W : finType) (f : M -> W) : #|touched f work| <= total f.
Proof.
have -> : touched f work = \bigcup_p accesses f p.
  apply/setP => x; apply/imsetP/bigcupP => [[v vw ->]|[p _ /imsetP[v /sliceP[vw _] ->]]]; last by exists v.
  by exists (does v) => //; apply: imset_f; apply/sliceP.
rewrite /total; elim/big_rec2: _ => [|p s X _ Xs]; first by rewrite cards0.
by apply: leq_trans (leq_add (leqnn _) Xs); rewrite cardsU leq_subr.
Qed.

Lemma total_groups (W : finType) (f : M -> W) : (forall u v, f u = f v -> group u = group v) ->
  \sum_(i : P * G) #|touched f (slice group (slice does work i.1) i.2)| <= total f.
Proof.
move=> fg; rewrite -(pair_bigA _ (fun p g => #|touched f (slice group (slice does work p) g)|)) /=.
by apply: leq_sum => p _; apply: sum_touched => u v _ _; apply: fg.
Qed.

(* H^3 / (Q q) is at most the product of the three totals. *)
Theorem accessed_volume : at_most -> (\sum_(v in work) w v) ^ 3 <= Q * q * (total a * total b * total c).
Proof.
move=> cap.
have -> : \sum_(v in work) w v = \sum_(i : P * G) \sum_(v in slice group (slice does work i.1) i.2) w v.
  rewrite (sum_slices does) -(pair_bigA _ (fun p g => \sum_(v in slice group (slice does work p) g) w v)) /=.
  by apply: eq_bigr => p _; apply: sum_slices.
apply: leq_trans (hoelder3 (q := Q * q) (fun i => leq_trans (geometry _) (leq_mul (leq_mul (leqnn Q) (cap i.1 i.2))
  (leqnn _)))) _.
by rewrite leq_mul2l !leq_mul ?total_groups ?orbT.
Qed.

Theorem accessed : at_most -> enough q (total a + total b + total c).
Proof.
move=> cap; exists (total a), (total b), (total c).
by do ![split; try exact: total_floor]; first exact: accessed_volume.
Qed.
End Parts.

Lemma enough_le q q' S S' : enough q S -> q <= q' -> S <= S' -> enough q' S'.
Proof.
move=> [x [y [z [f [v s]]]]] qq ss; exists x, y, z; do !split=> //; last exact: leq_trans ss.
by apply: leq_trans v _; rewrite leq_mul2r leq_mul2l qq !orbT.
Qed.

(* A memory limit. A schedule cuts the work of every process into cuts+1 segments, with boundaries 0, ..., cuts+1. *)
Record schedule (P : finType) (cuts mem q : nat) := Schedule {
  does : M -> P * 'I_cuts.+1;          (* who performs a multiply-add, and in which of its segments *)
  sums : P -> nat -> {set A};          (* words of Out of which a process has a sum in memory at a boundary *)
  loads_b : P -> nat -> {set B};       (* words of In, and of Ker, that it has in memory at a boundary *)
  loads_c : P -> nat -> {set C};
  sent : P -> nat -> {set A};          (* words of Out of which it sends a sum in a segment *)
  got_b : P -> nat -> {set B};         (* words of In, and of Ker, that it receives in a segment *)
  got_c : P -> nat -> {set C};
  own_a : A -> P; own_b : B -> P; own_c : C -> P;   (* where words are at the end (Out), at the start (In, Ker) *)
  most : at_most does q;
  reads_b : forall p j, accesses does b (p, j) \subset loads_b p j :|: got_b p j;
  reads_c : forall p j, accesses does c (p, j) \subset loads_c p j :|: got_c p j;
  writes : forall p j, accesses does a (p, j) \subset sums p j.+1 :|: sent p j;
  limit : forall p j, 0 < j < cuts.+1 -> #|loads_b p j| + #|loads_c p j| + #|sums p j| <= mem;
  start_b : forall p x, x \in loads_b p 0 -> own_b x = p;
  start_c : forall p x, x \in loads_c p 0 -> own_c x = p;
  end_a : forall p x, x \in sums p cuts.+1 -> own_a x = p }.

Definition moved P cuts mem q (s : schedule P cuts mem q) :=
  \sum_p \sum_(j < cuts.+1) (#|sent s p j| + #|got_b s p j| + #|got_c s p j|).

Lemma boundaries cuts mem (u v : nat -> nat) : (forall j, 0 < j < cuts.+1 -> u j + v j <= mem) ->
  \sum_(j < cuts.+1) (u j + v j.+1) <= cuts * mem + (u 0 + v cuts.+1).
Proof.
elim: cuts => [|cuts IH] H; first by rewrite big_ord_recr big_ord0.
rewrite big_ord_recr /=; have := H cuts.+1; rewrite ltnSn => /(_ isT) h.
have := IH (_ : forall j, 0 < j < cuts.+1 -> u j + v j <= mem); set S := \sum_(j < cuts.+1) _ => {}IH.
have {}IH : S <= cuts * mem + (u 0 + v cuts.+1) by apply: IH => j /andP[j0 jn]; apply: H; rewrite j0 ltnW.
lia.
Qed.

(* What a part accesses was there or came; only words that are touched at all count. *)
Lemma there_or_came (I W : finType) (d : M -> I) (f : M -> W) i (there came : {set W}) :
  accesses d f i \subset there :|: came -> #|accesses d f i| <= #|came| + #|there :&: touched f work|.
Proof.
move=> /subsetP sub; apply: (@leq_trans #|came :|: there :&: touched f work|); last by rewrite cardsU leq_subr.
apply/subset_leq_card/subsetP => x xa; have := sub x xa; rewrite !inE => /orP[->|->] //=; apply/orP; right.
by case/imsetP: xa => v /sliceP[vw _] ->; apply: imset_f.
Qed.

(* Every word is in one place only. *)
Lemma in_one_place (P W : finType) (X : P -> {set W}) (T : {set W}) (own : W -> P) :
  (forall p x, x \in X p -> own x = p) -> \sum_p #|X p :&: T| <= #|T|.
Proof.
move=> o; apply: disjoint_sum => [p p' x|p]; last exact: subsetIr.
by rewrite !inE => /andP[/o <- _] /andP[/o <- _].
Qed.

(* One segment, so that all of the memory is empty of words that others own: each tensor by itself. *)
Lemma one_segment (P W : finType) (d : M -> P * 'I_1) (f : M -> W) (there came : P -> {set W}) (own : W -> P) :
  (forall p, accesses d f (p, ord0) \subset there p :|: came p) -> (forall p x, x \in there p -> own x = p) ->
  total d f <= \sum_p #|came p| + #|touched f work|.
Proof.
move=> sub o; apply: leq_trans (leq_add (leqnn _) (in_one_place _ o)); rewrite -big_split /=.
rewrite /total (eq_bigr (fun i => #|accesses d f (i.1, i.2)|)) => [|[p j] _ //].
rewrite -(pair_bigA _ (fun p j => #|accesses d f (p, j)|)) /=; apply: leq_sum => p _.
rewrite big_ord_recl big_ord0 addn0.
exact: there_or_came.
Qed.

Theorem received_enough P cuts mem q (s : schedule P cuts mem q) :
  enough q (moved s + #|P| * cuts * mem + (#|touched a work| + #|touched b work| + #|touched c work|)).
Proof.
apply: enough_le (accessed (most s)) (leqnn q) _.
pose u p j := #|loads_b s p j :&: touched b work| + #|loads_c s p j :&: touched c work|.
pose v p j := #|sums s p j :&: touched a work|.
have part p (j : 'I_cuts.+1) :
    #|accesses (does s) a (p, j)| + #|accesses (does s) b (p, j)| + #|accesses (does s) c (p, j)|
    <= #|sent s p j| + #|got_b s p j| + #|got_c s p j| + (u p j + v p j.+1).
  apply: leq_trans (leq_add (leq_add (there_or_came (writes s p j)) (there_or_came (reads_b s p j)))
    (there_or_came (reads_c s p j))) _; rewrite /u /v.
  by move: #|sent _ _ _| #|got_b _ _ _| #|got_c _ _ _| #|_ :&: _| #|_ :&: _| #|_ :&: _| => *; lia.
have inner p : \sum_(j < cuts.+1) (u p j + v p j.+1) <= cuts * mem + (u p 0 + v p cuts.+1).
  apply: boundaries => j h; apply: leq_trans (limit s p h); rewrite /u /v.
  by rewrite !leq_add ?subset_leq_card ?subsetIl.
have O : \sum_p v p cuts.+1 <= #|touched a work| by apply: (@in_one_place _ _ _ _ (own_a s)) => p x; apply: end_a.
have I : \sum_p u p 0 <= #|touched b work| + #|touched c work|.
  rewrite big_split; apply: leq_add; first by apply: (@in_one_place _ _ _ _ (own_b s)) => p x; apply: start_b.
  by apply: (@in_one_place _ _ _ _ (own_c s)) => p x; apply: start_c.
rewrite /total -!big_split /= (eq_bigr (fun i => #|accesses (does s) a (i.1, i.2)| + #|accesses (does s) b (i.1, i.2)|
  + #|accesses (does s) c (i.1, i.2)|)) => [|[p j] _ //].
rewrite -(pair_bigA _ (fun p j => #|accesses (does s) a (p, j)| + #|accesses (does s) b (p, j)|
  + #|accesses (does s) c (p, j)|)) /=.
apply: leq_trans (_ : moved s + \sum_p (cuts * mem + (u p 0 + v p cuts.+1)) <= _).
  rewrite /moved -big_split; apply: leq_sum => p _; apply: leq_trans (leq_add (leqnn _) (inner p)).
  by rewrite -big_split; apply: leq_sum => j _; apply: part.
by rewrite big_split /= sum_nat_const big_split /= mulnA -!addnA !leq_add2l addnC leq_add.
Qed.
End Processes.
