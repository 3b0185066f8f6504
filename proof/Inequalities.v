(* Inequalities of natural numbers and of finite sums: no roots, no reals. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

(** * Means, and Hoelder's inequality *)

(* If f_i^2 <= q g_i h_i for all i, then (sum f)^2 <= q (sum g)(sum h): Cauchy-Schwarz without square roots. *)
Lemma hoelder2 (I : finType) q (f g h : I -> nat) :
  (forall i, f i ^ 2 <= q * (g i * h i)) -> (\sum_i f i) ^ 2 <= q * ((\sum_i g i) * (\sum_i h i)).
Proof.
move=> H; rewrite -mulnn !big_distrlr /= big_distrr /= -(leq_pmul2l (isT : 0 < 2)) ![2 * _]mul2n -!addnn.
rewrite [in X in _ <= X](eq_bigr (fun i => \sum_j q * (g i * h j))) => [|i _]; last by rewrite big_distrr.
rewrite [X in _ <= _ + X]exchange_big -!big_split; apply: leq_sum => i _.
rewrite -!big_split; apply: leq_sum => j _ /=.
rewrite addnn -mul2n -mulnDr -leq_sqr.
apply: leq_trans (_ : 4 * (q ^ 2 * ((g i * h j) * (g j * h i))) <= _); last first.
  by rewrite expnMn mulnCA leq_mul2l nat_AGM2 orbT.
rewrite !expnMn leq_mul2l /=; apply: leq_trans (leq_mul (H i) (H j)) _; apply: eq_leq; nia.
Qed.

(* The arithmetic and the geometric mean of three numbers. *)
Lemma amgm3 a b c : 27 * (a * b * c) <= (a + b + c) ^ 3.
Proof.
have sq (x y : nat) : 2 * (x * y) <= x * x + y * y by rewrite !mulnn; exact: nat_Cauchy.
have m3 x y : x * x * y + x * y * y <= x * x * x + y * y * y by have := sq x y; nia.
have K1 : 2 * (a * b * c) <= a * a * c + b * b * c by have := sq a b; nia.
have K2 : 2 * (a * b * c) <= b * b * a + c * c * a by have := sq b c; nia.
have K3 : 2 * (a * b * c) <= a * a * b + c * c * b by have := sq a c; nia.
have M1 := m3 a b. have M2 := m3 b c. have M3 := m3 a c.
rewrite !expnS expn0 muln1. nia.
Qed.

(* If f_i^3 <= q x_i y_i z_i for all i, then (sum f)^3 <= q (sum x)(sum y)(sum z): Hoelder without cube roots. *)
Section Hoelder3.
Variable I : finType.
Implicit Types x y z : I -> nat.

Lemma triple x y z :
  (\sum_i x i) * (\sum_i y i) * (\sum_i z i) = \sum_(t : I * I * I) x t.1.1 * y t.1.2 * z t.2.
Proof. by rewrite big_distrlr /= pair_bigA /= big_distrlr /= pair_bigA. Qed.

Lemma turn (F : I -> I -> I -> nat) :
  \sum_(t : I * I * I) F t.1.1 t.1.2 t.2 = \sum_(t : I * I * I) F t.1.2 t.2 t.1.1.
Proof.
rewrite (reindex (fun t : I * I * I => (t.1.2, t.2, t.1.1))) //=.
by exists (fun t => (t.2, t.1.1, t.1.2)) => -[[p r] s].
Qed.

Lemma hoelder3 q (f x y z : I -> nat) :
  (forall i, f i ^ 3 <= q * (x i * y i * z i)) ->
  (\sum_i f i) ^ 3 <= q * ((\sum_i x i) * (\sum_i y i) * (\sum_i z i)).
Proof.
move=> H; rewrite !expnS expn0 muln1 mulnA !triple -(leq_pmul2l (isT : 0 < 3)).
pose G a b c := x a * y b * z c.
have -> : 3 * (q * \sum_(t : I * I * I) x t.1.1 * y t.1.2 * z t.2)
    = \sum_(t : I * I * I) q * (G t.1.1 t.1.2 t.2 + G t.1.2 t.2 t.1.1 + G t.2 t.1.1 t.1.2).
  rewrite -big_distrr !big_split /= -(turn G) (turn (fun a b c => G c a b)) /G /=; set S := \sum_(t : _) _; nia.
rewrite big_distrr; apply: leq_sum => -[[i j] k] _ /=; rewrite -(leq_exp2r _ _ (isT : 0 < 3)) /G.
apply: (@leq_trans (q ^ 3 * (27 * (x i * y j * z k * (x j * y k * z i) * (x k * y i * z j))))); last first.
  by rewrite expnMn leq_mul2l amgm3 orbT.
have P := leq_mul (leq_mul (H i) (H j)) (H k).
rewrite !expnMn; apply: leq_trans (leq_mul (leqnn (3 ^ 3)) P) _.
by apply: eq_leq; rewrite !expnS expn0; nia.
Qed.
End Hoelder3.

(** * Counting by slices *)

(* touched f V: the words that the multiply-adds of V touch, if f gives the word of a multiply-add. *)
Notation touched f V := [set f v | v in V].
(* those of V for which f has the value i *)
Definition slice (M I : finType) (f : M -> I) (V : {set M}) i := [set v in V | f v == i].

Lemma sliceP (M I : finType) (f : M -> I) (V : {set M}) i v : reflect (v \in V /\ f v = i) (v \in slice f V i).
Proof. by rewrite inE; apply: (iffP andP) => -[? /eqP ?]. Qed.

Lemma sum_slices (M I : finType) (f : M -> I) (V : {set M}) (w : M -> nat) :
  \sum_(v in V) w v = \sum_i \sum_(v in slice f V i) w v.
Proof.
by rewrite (partition_big f xpredT) //; apply: eq_bigr => i _; apply: eq_bigl => v; rewrite inE.
Qed.

Lemma card_slices (M I : finType) (f : M -> I) (V : {set M}) : #|V| = \sum_i #|slice f V i|.
Proof. by rewrite -sum1_card (sum_slices f); apply: eq_bigr => i _; rewrite sum1_card. Qed.

Lemma disjoint_sum (I W : finType) (S : I -> {set W}) (U : {set W}) :
  (forall i j w, w \in S i -> w \in S j -> i = j) -> (forall i, S i \subset U) -> \sum_i #|S i| <= #|U|.
Proof.
move=> dis sub; rewrite (eq_bigr (fun i => \sum_w (w \in S i : nat))) => [|i _]; last first.
  by rewrite -sum1_card big_mkcond; apply: eq_bigr => w _; case: (w \in S i).
rewrite exchange_big -sum1_card [X in _ <= X]big_mkcond /=; apply: leq_sum => w _.
case: (pickP (fun i => w \in S i)) => [i wi|no]; last by rewrite big1 // => i _; rewrite no.
rewrite (bigD1 i) //= wi big1 => [|j /negP ji]; last first.
  by case: (boolP (w \in S j)) => // wj; case: ji; rewrite (dis i j w wi wj).
by rewrite (subsetP (sub i) _ wi).
Qed.

(* A word that knows the slice is touched in one slice only. *)
Lemma sum_touched (M I W : finType) (f : M -> I) (word : M -> W) (V : {set M}) :
  {in V &, forall u v, word u = word v -> f u = f v} -> \sum_i #|touched word (slice f V i)| <= #|touched word V|.
Proof.
move=> knows; apply: disjoint_sum => [i j w|i].
  move=> /imsetP[u /sliceP[uV <-] ->] /imsetP[v /sliceP[vV <-] e]; exact: knows.
by apply: imsetS; apply/subsetP => v /sliceP[].
Qed.

(** * The least sum of three totals *)

Lemma no_floor k V x y z : V <= k * (x * y * z) -> 27 * V <= k * (x + y + z) ^ 3.
Proof.
move=> volume; apply: leq_trans (leq_mul (leqnn 27) volume) _.
by rewrite mulnCA leq_mul2l amgm3 orbT.
Qed.

(* With floors. The totals X, Y, Z have the volume V / K, and are at least o', i', k'. The certificate has the point
   xO / E, xI / E, xK / E of at most this volume, and nu / E, and o, i, k are at least o', i', k'. A sum S of words
   that is at least the excess of the totals over the floors is then at least 3 nu - nu (o / xO + i / xI + k / xK). *)
Lemma duality (K V X Y Z xO xI xK nu E S o i k o' i' k' : nat) :
  0 < K -> 0 < xO -> 0 < xI -> 0 < xK -> nu <= xO -> nu <= xI -> nu <= xK ->
  xO * xI * xK * K <= V * E ^ 3 -> V <= K * (X * Y * Z) ->
  o' <= X -> i' <= Y -> k' <= Z -> o' <= o -> i' <= i -> k' <= k -> X + Y + Z <= S + (o' + i' + k') ->
  3 * (nu * (xO * xI * xK)) <= E * (xO * xI * xK) * S + nu * (E * (o * (xI * xK) + i * (xO * xK) + k * (xO * xI))).
Proof.
move=> K0 x0 y0 z0 nx ny nz vol cube oX iY kZ oo ii kk sum.
pose Q := xO * xI * xK; pose a := E * X * (xI * xK); pose b := E * Y * (xO * xK); pose c := E * Z * (xO * xI).
have Q_le : Q <= E ^ 3 * (X * Y * Z).
  rewrite -(leq_pmul2r K0); apply: leq_trans vol _; rewrite mulnC -mulnA leq_mul2l [X in _ <= X]mulnC cube orbT //.
have abc : a * b * c = E ^ 3 * (X * Y * Z) * Q ^ 2.
  by rewrite /a /b /c /Q !expnS !expn0; lia.
have mean : 3 * Q <= a + b + c.
  rewrite -(leq_exp2r _ _ (isT : 0 < 3)) expnMn; apply: leq_trans _ (amgm3 a b c); rewrite leq_mul2l /=.
  by rewrite abc expnS leq_mul2r Q_le orbT.
have part X' x p q w w' : nu <= x -> w' <= X' -> w' <= w -> p = x * q ->
    nu * (E * X' * q) <= E * p * (X' - w') + nu * (E * (w * q)).
  move=> nx' wX ww ->; rewrite -{1}(subnK wX) mulnDr mulnDl mulnDr; apply: leq_add.
    apply: (@leq_trans (x * (E * (X' - w') * q))); first by rewrite leq_mul2r nx' orbT.
    by move: (X' - w') => r; apply: eq_leq; nia.
  by rewrite leq_mul2l -mulnA !leq_mul2l leq_mul2r ww !orbT.
have PO := part X xO Q (xI * xK) o o' nx oX oo (esym (mulnA _ _ _)).
have PI := part Y xI Q (xO * xK) i i' ny iY ii (ltac:(rewrite /Q; lia)).
have PK := part Z xK Q (xO * xI) k k' nz kZ kk (ltac:(rewrite /Q; lia)).
have rest : (X - o') + (Y - i') + (Z - k') <= S by lia.
rewrite -/Q mulnCA; apply: leq_trans (leq_mul (leqnn nu) mean) _.
rewrite !mulnDr -/a -/b -/c; apply: leq_trans (leq_add (leq_add PO PI) PK) _.
move: (leq_mul (leqnn (E * Q)) rest); rewrite !mulnDr.
move: (E * Q * (X - o')) (E * Q * (Y - i')) (E * Q * (Z - k')) (E * Q * S) => r1 r2 r3 r4.
move: (nu * (E * (o * (xI * xK)))) (nu * (E * (i * (xO * xK)))) (nu * (E * (k * (xO * xI)))) => w1 w2 w3; lia.
Qed.
