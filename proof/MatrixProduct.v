(* Matrix products: the three regimes of Al Daas, Ballard, Grigori, Kumar and Rouse (SPAA'22), with their constants. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Forms Geometry Execution Segments Schedule.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

(** * The least sum of three totals, from one, two or three that grow *)

(* F^2 = a b c. The totals x + a, y + b, z + c have the volume F^3 / cap or more. *)
Section Regimes.
Variables (F cap a b c x y z : nat).
Hypotheses (F0 : 0 < F) (sizes : F ^ 2 = a * (b * c)) (ca : c <= a) (ba : b <= a).
Hypothesis volume : F ^ 3 <= cap * ((x + a) * (y + b) * (z + c)).

Let abc : 0 < a * (b * c). Proof. by rewrite -sizes expn_gt0 F0. Qed.
Let a0 : 0 < a. Proof. by move: abc; rewrite muln_gt0 => /andP[]. Qed.
Let b0 : 0 < b. Proof. by move: abc; rewrite !muln_gt0 => /and3P[]. Qed.
Let shape : F * (a * (b * c)) <= cap * ((x + a) * (y + b) * (z + c)). Proof. by rewrite -sizes -expnS. Qed.

(* The smallest one grows. *)
Lemma one_grows : F * c <= cap * b -> F * c <= cap * (x + y + z + c).
Proof.
move=> one; case: (leqP b (x + y + z + c)) => [le|/ltnW lt].
  by apply: leq_trans one _; rewrite leq_mul2l le orbT.
have square : (x + b) * (z + c) <= b * (x + z + c).
  have : x * (z + c) <= b * x by rewrite mulnC leq_mul2r; apply/orP; right; move: lt; clear; lia.
  by move: lt; clear; nia.
have part : (x + b) * (y + b) * (z + c) <= b * b * (x + y + z + c).
  have le : b * (x + z + c) <= b * b by rewrite leq_mul2l; apply/orP; right; move: lt; clear; lia.
  have := leq_mul (leqnn y) (leq_trans square le); have := leq_mul (leqnn b) square; clear; nia.
rewrite -(leq_pmul2l (_ : 0 < a * (b * b))) ?muln_gt0 ?a0 ?b0 //.
have wide : b * (x + a) <= a * (x + b) by rewrite !mulnDr [b * a]mulnC leq_add2r leq_mul2r ba orbT.
apply: (@leq_trans (b * (F * (a * (b * c))))); first by apply: eq_leq; clear; lia.
apply: leq_trans (leq_mul (leqnn b) shape) _.
apply: (@leq_trans (cap * (b * (x + a) * ((y + b) * (z + c))))); first by apply: eq_leq; clear; lia.
apply: (@leq_trans (cap * (a * (x + b) * ((y + b) * (z + c))))); first by rewrite leq_mul2l leq_mul2r wide !orbT.
apply: (@leq_trans (cap * (a * ((x + b) * (y + b) * (z + c))))); first by apply: eq_leq; clear; lia.
apply: (@leq_trans (cap * (a * (b * b * (x + y + z + c))))); first by rewrite !leq_mul2l part !orbT.
by apply: eq_leq; clear; lia.
Qed.

(* The two smaller ones grow. *)
Lemma two_grow : F * (b * c) <= cap * a ^ 2 -> 4 * (F * (b * c)) <= cap * (x + y + z + b + c) ^ 2.
Proof.
move=> two; set S := x + y + z + b + c.
have mean u v : u + v <= S -> F * (b * c) <= cap * (u * v) -> 4 * (F * (b * c)) <= cap * S ^ 2.
  move=> uv le; apply: leq_trans (leq_mul (leqnn 4) le) _; rewrite mulnCA leq_mul2l; apply/orP; right.
  apply: leq_trans (nat_AGM2 u v) _; by rewrite leq_exp2r.
have grow u v : u <= a -> F * (a * (b * c)) <= cap * ((x + a) * (u * v)) -> F * (b * c) <= cap * ((x + u) * v).
  move=> ua le; rewrite -(leq_pmul2l a0).
  apply: (@leq_trans (F * (a * (b * c)))); first by apply: eq_leq; clear; lia.
  apply: leq_trans le _.
  apply: (@leq_trans (cap * (a * (x + u) * v))); last by apply: eq_leq; clear; lia.
  rewrite leq_mul2l mulnA leq_mul2r; apply/orP; right; apply/orP; right.
  by rewrite mulnDl mulnDr leq_add2r [x * u]mulnC leq_mul2r ua orbT.
case: (leqP (y + b) a) => [small|/ltnW large].
  apply: (mean (x + (y + b)) (z + c)); first by rewrite /S; clear; lia.
  by apply: grow small _; rewrite [(x + a) * _]mulnA.
case: (leqP (z + c) a) => [small|/ltnW large'].
  apply: (mean (x + (z + c)) (y + b)); first by rewrite /S; clear; lia.
  by apply: grow small _; rewrite [(z + c) * _]mulnC [(x + a) * _]mulnA.
apply: (mean (y + b) (z + c)); first by rewrite /S; clear; lia.
by apply: leq_trans two _; rewrite leq_mul2l -mulnn leq_mul ?orbT.
Qed.

(* All of them grow. *)
Lemma three_grow : 27 * F ^ 3 <= cap * (x + y + z + a + b + c) ^ 3.
Proof.
by apply: leq_trans (no_floor volume) _; rewrite leq_mul2l leq_exp2r //; apply/orP; right; clear; lia.
Qed.
End Regimes.

(** * Matrix products *)

Section Product.
(* Out[i, j] += In[i, l] * Ker[l, j], for all rows i, columns j and inner indices l. *)
Variables I J L : finType.
Definition Product := [finType of I * J * L].
Implicit Types v : Product.
Definition out v := (v.1.1, v.1.2).
Definition inp v := (v.1.1, v.2).
Definition ker v := (v.2, v.1.2).

Variables (P : finType) (mem cap : nat).
(* Any execution of all multiply-adds; for n processes with equal work, n * cap is their number. *)
Variable e : execution out inp ker [set: Product] P mem cap.

(* Loomis and Whitney. *)
Lemma geometry (V : {set Product}) :
  #|V| ^ 2 <= #|touched out V| * (#|touched inp V| * #|touched ker V|).
Proof.
have := @described (times (times (in_12 I) (in_13 J)) (in_23 L)) 1 1 _ _ _ _ out inp ker V id
  (bounded_times (bounded_times (@bounded_12 I) (@bounded_13 J)) (@bounded_23 L)).
rewrite !mul1n; apply => [u v _ _ //|[[i j] l] [[i' j'] l'] _ _ [-> ->] //|[[i j] l] [[i' j'] l'] _ _ [-> ->] //|].
by move=> [[i j] l] [[i' j'] l'] _ _ [-> ->].
Qed.

(* Each tensor by itself: what is received of it, and its size. *)
Theorem each_matrix (F := #|I| * #|J| * #|L|) : F ^ 3 <= cap * ((received_out e + #|I| * #|J|) *
  (received_inp e + #|I| * #|L|) * (received_ker e + #|L| * #|J|)).
Proof.
have geo (V : {set Product}) : (\sum_(v in V) 1) ^ 3
    <= 1 * #|V| * (#|touched out V| * #|touched inp V| * #|touched ker V|).
  by rewrite sum1_card mul1n expnS leq_mul2l -mulnA geometry orbT.
have know (W : finType) (f : Product -> W) u v : f u = f v -> tt = tt by [].
have few (g : unit) : #|slice (fun=> tt) [set: Product] g| <= #|Product| by apply: max_card.
have := executed_each e few (know _ out) (know _ inp) (know _ ker) geo (geq_minl _ _).
rewrite sum1_card cardsT !card_prod mul1n -/F => h; apply: leq_trans h _.
have most (W : finType) (f : Product -> W) : #|touched f [set: Product]| <= #|W| by apply: max_card.
rewrite leq_mul2l !leq_mul ?orbT // leq_add2l; first by rewrite -card_prod; apply: most.
  by rewrite -card_prod; apply: most.
by rewrite -card_prod; apply: most.
Qed.

(* The sides are m >= n >= k, in any order. *)
Variables m n k : nat.
Hypothesis sides : (#|I|, #|J|, #|L|) \in [:: (m, n, k); (m, k, n); (n, m, k); (n, k, m); (k, m, n); (k, n, m)].
Hypotheses (mn : n <= m) (nk : k <= n).
Local Notation F := (m * n * k).
Local Notation R := (all_received e).

Let sorted : exists x y z, F ^ 3 <= cap * ((x + m * n) * (y + m * k) * (z + n * k)) /\ x + y + z = R.
Proof.
have := each_matrix; rewrite (all_receivedE e); move: (received_out e) (received_inp e) (received_ker e) => o i w h.
have E x y z : #|I| * #|J| * #|L| = F -> (o + #|I| * #|J|) * (i + #|I| * #|L|) * (w + #|L| * #|J|) =
    (x + m * n) * (y + m * k) * (z + n * k) -> x + y + z = o + i + w ->
    exists x y z, F ^ 3 <= cap * ((x + m * n) * (y + m * k) * (z + n * k)) /\ x + y + z = o + i + w.
  by move=> f v t; exists x, y, z; rewrite -f -v.
move: sides E {h}; move: #|I| #|J| #|L| => I' J' L'; rewrite !inE => /or4P[| | |/or3P[]] /eqP[-> -> ->] E.
- by apply: (E o i w); clear; lia.
- by apply: (E i o w); clear; lia.
- by apply: (E o w i); clear; lia.
- by apply: (E i w o); clear; lia.
- by apply: (E w o i); clear; lia.
by apply: (E w i o); clear; lia.
Qed.

Let squares : F ^ 2 = m * n * (m * k * (n * k)). Proof. by rewrite -mulnn; clear; lia. Qed.

(* The three regimes for any work: F / cap takes the place of the number of processes. *)
Theorem regimes : 0 < F ->
  [/\ F * (n * k) <= cap * (m * k) -> F * (n * k) <= cap * (R + n * k),
      F * (m * k * (n * k)) <= cap * (m * n) ^ 2 -> 4 * (F * (m * k * (n * k))) <= cap * (R + m * k + n * k) ^ 2 &
      27 * F ^ 3 <= cap * (R + m * n + m * k + n * k) ^ 3].
Proof.
move=> F0; have [x [y [z [volume <-]]]] := sorted.
have ba : m * k <= m * n by rewrite leq_mul2l nk orbT.
have ca : n * k <= m * n by rewrite mulnC leq_mul2r (leq_trans nk) // orbT.
split; first exact: one_grows F0 squares ba volume.
  exact: two_grow F0 squares volume.
exact: three_grow volume.
Qed.

(* Equal work. The words that all processes receive together are at least
     P n k - n k                              for P <= m / n,
     2 (P m n k^2)^(1/2) - m k - n k          for P <= m n / k^2, and
     3 (P (m n k)^2)^(1/3) - m n - m k - n k  for every P. *)
Theorem three_regimes : #|P| * cap = F ->
  [/\ #|P| * n <= m -> (#|P| - 1) * (n * k) <= R,
      #|P| * k ^ 2 <= m * n -> 4 * (#|P| * (m * n * k ^ 2)) <= (R + m * k + n * k) ^ 2 &
      27 * (#|P| * F ^ 2) <= (R + m * n + m * k + n * k) ^ 3].
Proof.
move=> equal; case: (posnP F) => [F0|F0].
  have -> : k = 0 by move: F0 mn nk; case: k => // k'; case: n => // n'; case: m.
  by rewrite !(muln0, exp0n).
have c0 : 0 < cap by move: F0; rewrite -equal muln_gt0 => /andP[].
have cancel X : F * X = cap * (#|P| * X) by rewrite -equal -mulnA mulnCA.
have sq : m * k * (n * k) = m * n * k ^ 2 by rewrite -mulnn; clear; lia.
have [one two three] := regimes F0; split=> [small|small|].
- have h : F * (n * k) <= cap * (R + n * k) by apply: one; rewrite cancel leq_mul2l mulnA leq_mul2r small !orbT.
  by move: h; rewrite cancel leq_pmul2l // mulnBl mul1n leq_subLR [n * k + R]addnC.
- have h : 4 * (F * (m * k * (n * k))) <= cap * (R + m * k + n * k) ^ 2.
    by apply: two; rewrite cancel sq leq_mul2l [#|P| * _]mulnCA -mulnn leq_mul2l small !orbT.
  by move: h; rewrite cancel sq [4 * _]mulnCA leq_pmul2l.
by move: three; rewrite [F ^ 3]expnS cancel [27 * _]mulnCA leq_pmul2l.
Qed.
End Product.
