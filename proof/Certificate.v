(* A checker of the numbers of a certificate, with a proof. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Geometry Execution Segments Schedule Convolution Bound.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
(* Numbers of a certificate: floors o, i, k of Out, In and Ker, V at most the cube of the weighted work, K = Q q, and
   the claim: a sum of words is at least L. Binary numbers, so that vm_compute decides in no time. *)
From Coq Require Import NArith.
Section Checker.
Local Open Scope N_scope.
Definition check_one (V K L f : N) := (V <=? K * f ^ 3) && (K * (f * (L - 1 - f) ^ 2) <? 4 * V).
Definition check_two (V K L f g : N) := (g <=? f) && (V <=? K * (f * g ^ 2)) && (K * (f * g * (L - 1 - f - g)) <? V).
Definition check (o i k V K L : N) := (L <=? o + i + k) || (K * (L - 1) ^ 3 <? 27 * V)
  || has (check_one V K L) [:: o; i; k]
  || has (fun p => check_two V K L p.1 p.2) [:: (o, i); (i, o); (o, k); (k, o); (i, k); (k, i)].
End Checker.

Section Sound.
Local Notation t := N.to_nat.
Lemma leN a b : N.leb a b = (t a <= t b). Proof. by apply/idP/idP; lia. Qed.
Lemma ltN a b : N.ltb a b = (t a < t b). Proof. by apply/idP/idP; lia. Qed.
Lemma mulN a b : t (N.mul a b) = t a * t b. Proof. exact: N2Nat.inj_mul. Qed.
Lemma addN a b : t (N.add a b) = t a + t b. Proof. exact: N2Nat.inj_add. Qed.
Lemma subN a b : t (N.sub a b) = t a - t b. Proof. exact: N2Nat.inj_sub. Qed.
Lemma expN2 a : t (N.pow a 2) = t a ^ 2. Proof. by rewrite N2Nat.inj_pow /= !expnS expn0; nia. Qed.
Lemma expN3 a : t (N.pow a 3) = t a ^ 3. Proof. by rewrite N2Nat.inj_pow /= !expnS expn0; nia. Qed.
Lemma oneN : t 1 = 1. Proof. by []. Qed.
Definition toN := (oneN, leN, ltN, mulN, addN, subN, expN2, expN3).

Lemma one_sound (V K L f : N) x y z : check_one V K L f -> t f <= x -> t V <= t K * (x * y * z) -> t L <= x + y + z.
Proof.
rewrite /check_one !toN => /andP[h1 h2] fx v; have := one_floor v fx h1.
rewrite leqNgt; apply: contraR; rewrite -ltnNge => lt.
apply: leq_ltn_trans h2; rewrite !leq_mul2l leq_exp2r // leq_sub2r ?orbT //; lia.
Qed.

Lemma two_sound (V K L f g : N) x y z : check_two V K L f g -> t f <= x -> t g <= y -> t V <= t K * (x * y * z) ->
  t L <= x + y + z.
Proof.
rewrite /check_two !toN => /andP[/andP[gf h1] h2] fx gy v; have := two_floors v fx gy gf h1.
rewrite leqNgt; apply: contraR; rewrite -ltnNge => lt.
apply: leq_ltn_trans h2; rewrite !leq_mul2l !leq_sub2r ?orbT //; lia.
Qed.

Theorem check_sound (o i k V K L : N) x y z S : check o i k V K L ->
  t o <= x -> t i <= y -> t k <= z -> t V <= t K * (x * y * z) -> x + y + z <= S -> t L <= S.
Proof.
move=> c ox iy kz v s; apply: leq_trans s; move: c; rewrite /check !toN /= !orbF -!orbA.
have perm a b d : a * b * d = x * y * z -> t V <= t K * (a * b * d) by move=> ->.
have v1 := perm y x z (congr1 (muln^~ z) (mulnC y x)).
have v2 : t V <= t K * (x * z * y) by apply: perm; rewrite mulnAC.
have v3 : t V <= t K * (z * x * y) by apply: perm; rewrite -mulnA mulnC.
have v4 : t V <= t K * (y * z * x) by apply: perm; rewrite mulnC mulnA.
have v5 : t V <= t K * (z * y * x) by apply: perm; rewrite [z * y]mulnC mulnC mulnA.
case/orP=> [h|]; first by apply: leq_trans h _; rewrite !leq_add.
case/orP=> [h|].
  have := no_floor v; rewrite leqNgt; apply: contraR; rewrite -ltnNge => lt; apply: leq_ltn_trans h.
  by rewrite leq_mul2l leq_exp2r //; apply/orP; right; lia.
have e1 : y + x + z = x + y + z by lia.
have e2 : x + z + y = x + y + z by lia.
have e3 : z + x + y = x + y + z by lia.
have e4 : y + z + x = x + y + z by lia.
have e5 : z + y + x = x + y + z by lia.
case/or4P=> [h|h|h|].
- exact: one_sound h ox v.
- by rewrite -e1; apply: one_sound h iy v1.
- by rewrite -e3; apply: one_sound h kz v3.
case/or4P=> [h|h|h|].
- exact: two_sound h ox iy v.
- by rewrite -e1; apply: two_sound h iy ox v1.
- by rewrite -e2; apply: two_sound h ox kz v2.
case/or3P=> h.
- by rewrite -e3; apply: two_sound h kz ox v3.
- by rewrite -e4; apply: two_sound h iy kz v4.
by rewrite -e5; apply: two_sound h kz iy v5.
Qed.

(* What a certificate proves about a layer, if its numbers are those of the layer. *)
Corollary certified (o i k V K L : N) D (N n sigma delta : 'I_D -> nat)
  (sp : forall d, 0 < sigma d) (dp : forall d, 0 < delta d)
  (Sample Group Filter Channel : finType) (work : {set Madd N n Sample Group Filter Channel})
  (w : Class sigma -> nat) (Q q S : nat) :
  bound sp dp work w Q q S -> check o i k V K L ->
  t o <= #|touched (@out _ N n _ _ _ _) work| ->
  t i <= #|touched (@inp _ N n sigma delta dp _ _ _ _) work| ->
  t k <= #|touched (@ker _ N n _ _ _ _) work| ->
  t V <= (\sum_(v in work) w (@class _ N n sigma delta sp _ _ _ _ v)) ^ 3 -> Q * q <= t K -> t L <= S.
Proof.
move=> [x [y [z [[ox iy kz] [v s]]]]] c ho hi hk hv hq.
apply: (check_sound c) s; try by [apply: leq_trans ox|apply: leq_trans iy|apply: leq_trans kz].
by apply: leq_trans hv (leq_trans v _); rewrite leq_mul2r hq orbT.
Qed.
End Sound.

(* 64 to 64 channels, 3 x 3 taps, 56 x 56 outputs, 58 x 58 inputs, 16 processes with equal work: S >= 862 448, and
   the checker accepts no larger number. *)
Example resnet : check 200704 215296 36864 (115605504 ^ 3) (9 * 7225344) 862448
  && ~~ check 200704 215296 36864 (115605504 ^ 3) (9 * 7225344) 862449 = true.
Proof. by vm_compute. Qed.
