(* Constants of one axis: a sum over outputs and taps of u(x) v(x + r) h(r) is at most C |u| |v| |h|. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia NArith.
From Coq Require PeanoNat.
From Synth Require Import Inequalities Forms Binary.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Local Notation t := N.to_nat.

(** * Integers are enough *)

(* The inequality for squares of integers. It implies the one without squares: scale by K^2 and round the roots up. *)
Definition integral F s t := forall u v w,
  t * (\sum_e u (@word1 F e) * (v (word2 e) * w (word3 e))) ^ 2
  <= s * ((\sum_i u i ^ 2) * ((\sum_i v i ^ 2) * (\sum_i w i ^ 2))).

Definition root K n := (Nat.sqrt (K * K * n)).+1.
Lemma root_above K n : K * K * n <= root K n ^ 2.
Proof. have [_] := PeanoNat.Nat.sqrt_spec (K * K * n) (PeanoNat.Nat.le_0_l _); rewrite /root -mulnn; lia. Qed.
Lemma root_below K n : root K n ^ 2 <= K * K * n + 2 * K * n + 1.
Proof.
have [h _] := PeanoNat.Nat.sqrt_spec (K * K * n) (PeanoNat.Nat.le_0_l _); rewrite /root -mulnn.
move: h; move: (Nat.sqrt _) => r h; have {}h : r * r <= K * K * n by lia.
have : r * r <= K * n * (K * n) by apply: leq_trans h _; case: (n) => [|m]; rewrite ?muln0 //; nia.
by rewrite !mulnn leq_sqr; nia.
Qed.

Lemma sum_root (I : finType) (u : I -> nat) K : 0 < K ->
  \sum_i root K (u i) ^ 2 <= K * (K * (\sum_i u i) + 2 * (\sum_i u i + #|I|)).
Proof.
move=> K0; apply: (@leq_trans (\sum_i (K * K * u i + 2 * K * u i + 1))).
  by apply: leq_sum => i _; apply: root_below.
rewrite !big_split /= -!big_distrr sum1_card /=; move: (\sum_i u i) #|I| => A n; nia.
Qed.

Lemma rounding s T A B C a b c : (forall K, 0 < K -> K ^ 3 * T <= s * ((K * A + a) * ((K * B + b) * (K * C + c)))) ->
  T <= s * (A * (B * C)).
Proof.
move=> H; rewrite leqNgt; apply/negP => lt; pose R := s * ((A + a) * ((B + b) * (C + c))).
have {H} := H R.+1 isT; move: lt; set K := R.+1 => lt H.
have K0 : 0 < K by [].
have above : s * ((K * A + a) * ((K * B + b) * (K * C + c))) <= K ^ 3 * (s * (A * (B * C))) + K ^ 2 * R.
  rewrite /R !expnS expn0 !muln1; have [k ->] : exists k, K = k + 1 by exists R; rewrite /K addn1.
  move: k => k; nia.
have below : K ^ 3 * (s * (A * (B * C))).+1 <= K ^ 3 * T by rewrite leq_mul2l lt orbT.
have rest : K ^ 2 * R < K ^ 3 by rewrite [K ^ 3]expnSr ltn_pmul2l ?expn_gt0.
have := leq_trans (leq_trans below H) above.
by rewrite mulnS addnC leq_add2l leqNgt rest.
Qed.

Lemma integral_bounded F s t : integral F s t -> bounded F s t.
Proof.
move=> H q f u v w fle; pose u' i := q * u i.
have {}fle e : f e ^ 2 <= u' (word1 e) * (v (word2 e) * w (word3 e)) by rewrite /u' -mulnA.
set S := \sum_e f e; suff key : t * S ^ 2 <= s * ((\sum_i u' i) * ((\sum_i v i) * (\sum_i w i))).
  by apply: leq_trans key _; apply: eq_leq; rewrite /u' -big_distrr /=; lia.
apply: (@rounding s (t * S ^ 2) _ _ _ (2 * (\sum_i u' i + #|first F|)) (2 * (\sum_i v i + #|second F|))
  (2 * (\sum_i w i + #|third F|))) => K K0.
have := H (fun i => root K (u' i)) (fun i => root K (v i)) (fun i => root K (w i)); set E := \sum_e _ => h.
have SE : K ^ 3 * S <= E.
  rewrite big_distrr; apply: leq_sum => e _ /=; rewrite -leq_sqr expnMn.
  apply: leq_trans (leq_mul (leqnn _) (fle e)) _; rewrite !expnMn.
  apply: leq_trans (leq_mul (root_above K _) (leq_mul (root_above K _) (root_above K _))).
  by apply: eq_leq; rewrite !expnS expn0; lia.
have := leq_trans _ (leq_trans h (leq_mul (leqnn s) (leq_mul (sum_root u' K0) (leq_mul (sum_root v K0) (sum_root w K0))))).
move=> /(_ (K ^ 3 * (K ^ 3 * (t * S ^ 2)))) {}h; rewrite -(leq_pmul2l (_ : 0 < K ^ 3)) ?expn_gt0 ?K0 //.
apply: leq_trans (h _) _; last by apply: eq_leq; rewrite !expnS expn0; lia.
have := leq_mul (leqnn t) (leq_mul SE SE); rewrite mulnn; apply: leq_trans; apply: eq_leq.
by rewrite !expnS !expn0; lia.
Qed.

(** * One axis *)

Lemma meet_lt o k (e : 'I_o * 'I_k) : e.1 + e.2 < o + k.
Proof. by rewrite -addnS leq_add ?(ltnW (ltn_ord e.1)) ?ltn_ord. Qed.

(* Outputs x below o and taps r below k meet in the row x + r. *)
Definition conv o k := Form (fun e : 'I_o * 'I_k => e.1) (fun e => Ordinal (meet_lt e)) (fun e => e.2).

Lemma conv_swap o k s t : bounded (conv o k) s t -> bounded (conv k o) s t.
Proof.
move=> H q f u v w fle; pose v' i := v (cast_ord (addnC o k) i).
have := H q (fun e => f (e.2, e.1)) w v' u => /(_ _) h.
have -> : \sum_i v i = \sum_i v' i.
  exact: (reindex _ (onW_bij _ (Bijective (cast_ordK (addnC o k)) (cast_ordKV (addnC o k))))).
have -> : \sum_e f e = \sum_(e : 'I_o * 'I_k) f (e.2, e.1).
  by rewrite (reindex (fun e : 'I_o * 'I_k => (e.2, e.1))) //; exists (fun e => (e.2, e.1)) => -[].
apply: leq_trans (h _) _ => [e|]; last first.
  by apply: eq_leq; congr (_ * _); rewrite [LHS]mulnA [LHS]mulnC; congr (_ * _); rewrite mulnC.
apply: leq_trans (fle _) _; rewrite /v' /=; apply: eq_leq; congr (q * _).
have -> : Ordinal (meet_lt (e.2, e.1)) = cast_ord (addnC o k) (Ordinal (meet_lt e)) by apply: val_inj; rewrite /= addnC.
lia.
Qed.

(* At most one term of a sum. *)
Lemma single (I : finType) (p : pred I) (F : I -> nat) c : (forall i j, p i -> p j -> i = j) ->
  (forall i, p i -> F i <= c) -> \sum_i p i * F i <= c.
Proof.
move=> one le; case: (pickP p) => [i pi|no]; last by rewrite big1 // => i _; rewrite no.
rewrite (bigD1 i) //= pi mul1n big1 ?addn0 ?le // => j /negP ji; case: (boolP (p j)) => // pj.
by case: ji; rewrite (one j i).
Qed.

(* C(N, n)^2 <= n. *)
Lemma conv_taps o k : bounded (conv o k) k 1.
Proof.
move=> q f u v w H; rewrite mul1n sum_pairs.
have H1 (r : 'I_k) : (\sum_x f (x, r)) ^ 2 <= q * ((\sum_i u i) * (\sum_i v i)) * (1 * w r).
  apply: (@leq_trans (q * w r * ((\sum_i u i) * (\sum_(x < o) v (Ordinal (meet_lt (x, r))))))).
    apply: hoelder2 => x; apply: leq_trans (H (x, r)) _; rewrite /=; apply: eq_leq; lia.
  have : \sum_(x < o) v (Ordinal (meet_lt (x, r))) <= \sum_i v i; last first.
    move=> le; have -> : q * ((\sum_i u i) * (\sum_i v i)) * (1 * w r) = q * w r * ((\sum_i u i) * (\sum_i v i)) by lia.
    by rewrite !leq_mul.
  have -> : \sum_(x < o) v (Ordinal (meet_lt (x, r)))
      = \sum_i \sum_(x < o) (Ordinal (meet_lt (x, r)) == i) * v i.
    rewrite exchange_big; apply: eq_bigr => x _; rewrite (bigD1 (Ordinal (meet_lt (x, r)))) //= eqxx mul1n.
    by rewrite big1 ?addn0 // => i /negbTE; rewrite eq_sym => ->.
  apply: leq_sum => i _; apply: single => // x y /eqP <- /eqP /(congr1 val) /= /addIn e; exact/esym/val_inj.
apply: leq_trans (hoelder2 H1) _; rewrite sum1_card card_ord; apply: eq_leq.
by rewrite [k * q]mulnC -!mulnA; congr (_ * _); rewrite [RHS]mulnCA; congr (_ * _); rewrite mulnCA.
Qed.

Lemma conv_min o k : bounded (conv o k) (minn o k) 1.
Proof. by rewrite /minn; case: ltnP => _; [apply/conv_swap|]; apply: conv_taps. Qed.

(** * Few taps: a quadratic form for each direction of h *)

(* A symmetric matrix K of numbers >= 0 has no eigenvalue above c if K z <= c z for some z > 0 (Perron). *)
Lemma perron (I : finType) (K : I -> I -> nat) (z u : I -> nat) c : (forall x, 0 < z x) ->
  (forall x y, K x y = K y x) -> (forall x, \sum_y K x y * z y <= c * z x) ->
  \sum_x \sum_y K x y * (u x * u y) <= c * \sum_x u x ^ 2.
Proof.
move=> z0 sym le; pose Z := \prod_x z x; pose r x := \prod_(y | y != x) z y.
have rz x : r x * z x = Z by rewrite /Z (bigD1 x) //= mulnC.
have Z0 : 0 < Z by apply: prodn_gt0.
have pair x y : 2 * (Z * (u x * u y)) <= r x * z y * u x ^ 2 + r y * z x * u y ^ 2.
  rewrite -leq_sqr; apply: leq_trans (nat_AGM2 _ _); rewrite expnMn leq_mul2l /=; apply: eq_leq.
  have -> : r x * z y * u x ^ 2 * (r y * z x * u y ^ 2) = (r x * z x) * (r y * z y) * (u x * u y) ^ 2.
    by rewrite expnMn; move: (u x ^ 2) (u y ^ 2) => a b; lia.
  by rewrite !rz -!mulnn; lia.
rewrite -(leq_pmul2l (_ : 0 < 2 * Z)) ?muln_gt0 ?Z0 //.
have half : \sum_x \sum_y K x y * (r x * z y * u x ^ 2) <= Z * (c * \sum_x u x ^ 2).
  rewrite mulnA big_distrr; apply: leq_sum => x _ /=; rewrite -(rz x).
  apply: (@leq_trans (r x * u x ^ 2 * \sum_y K x y * z y)).
    by rewrite big_distrr; apply: eq_leq; apply: eq_bigr => y _ /=; lia.
  by apply: leq_trans (leq_mul (leqnn _) (le x)) _; apply: eq_leq; move: (u x ^ 2) => a; lia.
have other : \sum_x \sum_y K x y * (r y * z x * u y ^ 2) <= Z * (c * \sum_x u x ^ 2).
  by rewrite exchange_big; under eq_bigr do under eq_bigr do rewrite sym.
apply: leq_trans (_ : \sum_x \sum_y K x y * (r x * z y * u x ^ 2 + r y * z x * u y ^ 2) <= _).
  rewrite big_distrr; apply: leq_sum => x _; rewrite big_distrr; apply: leq_sum => y _ /=.
  by apply: leq_trans (_ : K x y * (2 * (Z * (u x * u y))) <= _); [apply: eq_leq; lia|rewrite leq_mul2l pair orbT].
under eq_bigr do under eq_bigr do rewrite mulnDr.
under eq_bigr do rewrite big_split; rewrite big_split -mulnA mul2n -addnn; exact: leq_add.
Qed.

Section Lags.
Variables (o : nat) (u : 'I_o -> nat).
(* The autocorrelation of u. *)
Definition lag m := \sum_(i < o) \sum_(j < o) (i == j + m :> nat) * (u i * u j).

Lemma lag0 : lag 0 = \sum_i u i ^ 2.
Proof.
apply: eq_bigr => i _; rewrite (bigD1 i) //= addn0 eqxx mul1n big1 ?addn0 ?mulnn // => j /negbTE ji.
by rewrite addn0 -val_eqE eq_sym in ji *; rewrite ji.
Qed.

Lemma lag_le m : lag m <= lag 0.
Proof.
rewrite lag0 -(leq_pmul2l (isT : 0 < 2)) [X in _ <= X]mul2n -addnn.
have one (i : 'I_o) : \sum_(j < o) (i == j + m :> nat) * u i ^ 2 <= u i ^ 2.
  by apply: single => // j k /eqP -> /eqP /addIn /val_inj.
have two (j : 'I_o) : \sum_(i < o) (i == j + m :> nat) * u j ^ 2 <= u j ^ 2.
  by apply: single => // i k /eqP <- /eqP ik; apply: val_inj.
have ones : \sum_(i < o) \sum_(j < o) (i == j + m :> nat) * u i ^ 2 <= \sum_i u i ^ 2 by apply: leq_sum.
have twos : \sum_(j < o) \sum_(i < o) (i == j + m :> nat) * u j ^ 2 <= \sum_j u j ^ 2 by apply: leq_sum.
apply: leq_trans (leq_add ones twos).
rewrite [X in _ <= _ + X]exchange_big -big_split big_distrr; apply: leq_sum => i _ /=.
rewrite -big_split big_distrr; apply: leq_sum => j _ /=; case: (_ == _) => //; rewrite !mul1n; exact: nat_Cauchy.
Qed.

(* What taps j and k together contribute. *)
Lemma lag_pair j k : \sum_(x < o) \sum_(y < o) (x + j == y + k) * (u x * u y) = lag (if j <= k then k - j else j - k).
Proof.
case: ifP => [jk|/negbT]; last rewrite -ltnNge => /ltnW kj.
  apply: eq_bigr => x _; apply: eq_bigr => y _; congr (nat_of_bool _ * _).
  by rewrite -[RHS](eqn_add2r j) -addnA subnK.
rewrite /lag exchange_big; apply: eq_bigr => y _; apply: eq_bigr => x _; rewrite [u x * u y]mulnC.
by congr (nat_of_bool _ * _); rewrite -[RHS](eqn_add2r k) -addnA subnK // eq_sym.
Qed.
End Lags.

(* The constant of an axis from a quadratic form in h and u. *)
Lemma conv_quadratic o k s d : (forall (u : 'I_o -> nat) (h : 'I_k -> nat),
    d * (\sum_i \sum_j h i * h j * lag u (if i <= j then j - i else i - j)) <= s * (lag u 0 * \sum_i h i ^ 2)) ->
  bounded (conv o k) s d.
Proof.
move=> H; apply: integral_bounded => u v h; pose w (y : 'I_(o + k)) := \sum_(e | word2 (f := conv o k) e == y) u e.1 * h e.2.
have -> : \sum_e u (word1 (f := conv o k) e) * (v (word2 e) * h (word3 e)) = \sum_y v y * w y.
  rewrite (partition_big (fun e => word2 (f := conv o k) e) xpredT) //; apply: eq_bigr => y _ /=.
  by rewrite big_distrr; apply: eq_bigr => e /eqP <- /=; lia.
have cs : (\sum_y v y * w y) ^ 2 <= 1 * ((\sum_y v y ^ 2) * (\sum_y w y ^ 2)).
  by apply: hoelder2 => y; rewrite expnMn mul1n.
apply: leq_trans (leq_mul (leqnn d) cs) _; rewrite mul1n mulnCA [X in _ <= _ * X]mulnCA [X in _ <= X]mulnCA leq_mul2l.
apply/orP; right; rewrite -(lag0 u); apply: leq_trans (H u h); rewrite leq_mul2l; apply/orP; right.
have -> : \sum_y w y ^ 2 = \sum_e \sum_e' (word2 (f := conv o k) e == word2 (f := conv o k) e') * ((u e.1 * h e.2) * (u e'.1 * h e'.2)).
  rewrite [RHS](partition_big (fun e => word2 (f := conv o k) e) xpredT) //; apply: eq_bigr => y _.
  rewrite -mulnn big_distrl; apply: eq_bigr => e /eqP <-; rewrite big_distrr big_mkcond; apply: eq_bigr => e' _ /=.
  by rewrite eq_sym; case: (_ == _); rewrite ?mul1n.
rewrite sum_pairs; apply: leq_sum => j _; rewrite exchange_big sum_pairs; apply: leq_sum => j' _ /=.
rewrite -lag_pair exchange_big big_distrr; apply: leq_sum => x _; rewrite big_distrr; apply: leq_sum => y _.
by apply: eq_leq => /=; rewrite -val_eqE /=; case: (_ == _); lia.
Qed.

(* The form sum_m c m u(x) u(x + m) of one direction, m = 1, 2, 3, is at most c 0 |u|^2. The list has zeros, z, zeros. *)
Definition below_row (b : N) (c1 c2 c3 : N) (p3 p2 p1 z n1 n2 n3 : N) : bool :=
  ((0 <? z) && (c1 * (p1 + n1) + c2 * (p2 + n2) + c3 * (p3 + n3) <=? b * z))%num.
Fixpoint below_rows b c1 c2 c3 (l : seq N) : bool :=
  if l is p3 :: l' then
    if l' is p2 :: p1 :: z :: n1 :: n2 :: n3 :: _ then below_row b c1 c2 c3 p3 p2 p1 z n1 n2 n3 && below_rows b c1 c2 c3 l'
    else true
  else true.

Lemma below_rowsP b c1 c2 c3 l i (x := fun j => nth 0%num l (i + j)) : below_rows b c1 c2 c3 l -> i + 6 < size l ->
  below_row b c1 c2 c3 (x 0) (x 1) (x 2) (x 3) (x 4) (x 5) (x 6).
Proof.
rewrite /x {x}; elim: l i => [|p3 l IH] i //; case: l IH => [|p2 [|p1 [|z [|n1 [|n2 [|n3 l]]]]]] IH.
1,2,3,4,5,6: by rewrite /=; lia.
case/andP => now rest; case: i => [|i] // lt; exact: (IH i rest).
Qed.

Section Below.
Variables (o : nat) (u : 'I_o -> nat) (b c1 c2 c3 : N) (l : seq N).
Hypotheses (rows : below_rows b c1 c2 c3 l) (long : o + 6 <= size l).
Let Z i := t (nth 0%num l i).
Let coef m := if m == 1 then t c1 else if m == 2 then t c2 else if m == 3 then t c3 else 0.
Let K (x y : 'I_o) := coef (if x <= y then y - x else x - y).

Let row (x : 'I_o) : 0 < Z (x + 3) /\ t c1 * (Z (x + 2) + Z (x + 4)) + t c2 * (Z (x + 1) + Z (x + 5))
  + t c3 * (Z x + Z (x + 6)) <= t b * Z (x + 3).
Proof.
have lt : x + 6 < size l by have := ltn_ord x; lia.
have := below_rowsP rows lt; rewrite /below_row !toN addn0 => /andP[]; exact.
Qed.

(* The coefficient of a lag m, at the distance m in both directions. *)
Let split (x y : 'I_o) : K x y = t c1 * ((y == x + 1 :> nat) + (x == y + 1 :> nat))
  + t c2 * ((y == x + 2 :> nat) + (x == y + 2 :> nat)) + t c3 * ((y == x + 3 :> nat) + (x == y + 3 :> nat)).
Proof. rewrite /K /coef; case: leqP => xy; do ![case: eqP => ?]; lia. Qed.

Let up (x : 'I_o) m : \sum_(y < o) (y == x + m :> nat) * Z (y + 3) <= Z (x + m + 3).
Proof. by apply: single => [i j /eqP xi /eqP xj|i /eqP ->] //; apply: val_inj; rewrite /= xi xj. Qed.
Let down (x : 'I_o) m m' : m + m' = 3 -> \sum_(y < o) (x == y + m :> nat) * Z (y + 3) <= Z (x + m').
Proof.
move=> <-; apply: single => [i j /eqP -> /eqP /addIn /val_inj|i /eqP ->] //.
by rewrite addnA.
Qed.

Lemma below : 2 * (t c1 * lag u 1 + t c2 * lag u 2 + t c3 * lag u 3) <= t b * lag u 0.
Proof.
rewrite lag0; apply: leq_trans (perron (K := K) (z := fun x => Z (x + 3)) u (c := t b) _ _ _) => [|x|x y|x].
- rewrite (eq_bigr (fun x : 'I_o => \sum_(y < o) (t c1 * (((y == x + 1 :> nat) + (x == y + 1 :> nat)) * (u x * u y))
    + t c2 * (((y == x + 2 :> nat) + (x == y + 2 :> nat)) * (u x * u y))
    + t c3 * (((y == x + 3 :> nat) + (x == y + 3 :> nat)) * (u x * u y))))) => [|x _]; last first.
    by apply: eq_bigr => y _; rewrite split; lia.
  have two m : \sum_(x < o) \sum_(y < o) ((y == x + m :> nat) + (x == y + m :> nat)) * (u x * u y) = 2 * lag u m.
    under eq_bigr do under eq_bigr do rewrite mulnDl; under eq_bigr do rewrite big_split; rewrite big_split mul2n -addnn.
    congr (_ + _); rewrite exchange_big; apply: eq_bigr => x _; apply: eq_bigr => y _; by rewrite [u y * _]mulnC.
  under eq_bigr do rewrite !big_split -!big_distrr; rewrite !big_split -!big_distrr /= !two; lia.
- by case: (row x).
- by rewrite /K; case: (ltngtP x y) => [xy|xy|->].
case: (row x) => _; apply: leq_trans.
rewrite (eq_bigr (fun y : 'I_o => t c1 * ((y == x + 1 :> nat) * Z (y + 3) + (x == y + 1 :> nat) * Z (y + 3))
    + t c2 * ((y == x + 2 :> nat) * Z (y + 3) + (x == y + 2 :> nat) * Z (y + 3))
    + t c3 * ((y == x + 3 :> nat) * Z (y + 3) + (x == y + 3 :> nat) * Z (y + 3)))) => [|y _]; last first.
  by rewrite split; lia.
rewrite !big_split -!big_distrr !big_split /=.
have := (up x 1, up x 2, up x 3); rewrite -!addnA => -[[u1 u2] u3].
have d1 := @down x 1 2 erefl; have d2 := @down x 2 1 erefl; have d3 := @down x 3 0 erefl; rewrite addn0 in d3.
apply: leq_add; [|apply: leq_add]; rewrite leq_mul2l; apply/orP; right; rewrite addnC; exact: leq_add.
Qed.
End Below.

(** * The ceilings of a certificate *)

(* A direction (a, b) stands for the taps b, b; or a, b, a; or a, b, b, a. The coefficients of the form between two
   directions: of |u|^2, and of the lags 1, 2, 3. *)
Definition point := (N * N)%type.
Definition coefficients (four : bool) (p q : point) : N * N * N * N :=
  let aa := (p.1 * q.1)%num in let ab := (p.1 * q.2 + p.2 * q.1)%num in let bb := (p.2 * q.2)%num in
  if four then (2 * aa + 2 * bb, ab + bb, ab, aa)%num else (2 * aa + bb, ab, aa, 0)%num.

(* d (lags) <= c |u|^2 for the form of two directions; the list proves it. *)
Definition form_below (four : bool) (o c d : N) (p q : point) (l : seq N) : bool :=
  let '(b, c1, c2, c3) := coefficients four p q in
  ((o + 6 <=? N.of_nat (size l))%num && below_rows (c * b) (d * c1) (d * c2) (d * c3) l)%num.

(* Directions in order, each with a list of its own form and one for the form with the next. *)
Record direction := Direction { at_point : point; own : seq N; next : seq N }.
Fixpoint directions_below (four : bool) (o c d : N) (w : seq direction) : bool :=
  if w is p :: w' then form_below four o c d (at_point p) (at_point p) (own p) &&
    if w' is q :: _ then [&& form_below four o c d (at_point p) (at_point q) (next p),
      ((at_point p).2 * (at_point q).1 <? (at_point p).1 * (at_point q).2)%num & directions_below four o c d w']
    else ((at_point p).1 =? 0)%num && (0 <? (at_point p).2)%num
  else false.

Section Directions.
Variables (four : bool) (o c d : N) (u : 'I_(t o) -> nat).
Let l m := lag u m.
(* The form of directions (x, y) and (x', y'). *)
Let left x y x' y' := t d * (2 * if four then (x * y' + y * x' + y * y') * l 1 + (x * y' + y * x') * l 2 + x * x' * l 3
  else (x * y' + y * x') * l 1 + x * x' * l 2).
Let right x y x' y' := t c * ((if four then 2 * (x * x') + 2 * (y * y') else 2 * (x * x') + y * y') * l 0).

Let form_belowP p q s : form_below four o c d p q s -> left (t p.1) (t p.2) (t q.1) (t q.2) <= right (t p.1) (t p.2) (t q.1) (t q.2).
Proof.
rewrite /form_below /left /right /coefficients; case: (four); case/andP; rewrite !toN Nat2N.id => long rows;
  have := below u rows long; rewrite !toN -/(l 0) -/(l 1) -/(l 2) -/(l 3); have -> : t 2%num = 2 by [];
  move=> h; apply: leq_trans (leq_trans _ h) _; apply: eq_leq; lia.
Qed.

Lemma directions_belowP w x y : directions_below four o c d w -> t (at_point (head (Direction (0, 0)%num [::] [::]) w)).2 * x
    <= y * t (at_point (head (Direction (0, 0)%num [::] [::]) w)).1 -> left x y x y <= right x y x y.
Proof.
elim: w => [|p [|q w] IH] //=; case/andP => pp.
  case/andP; rewrite !toN => /eqP; have -> : t 0%num = 0 by []; move=> a0 b0; rewrite a0 muln0 => xb.
  have x0 : x = 0 by move: xb b0; case: (x) => // k; rewrite leqn0 muln_eq0 => /orP[/eqP ->|].
  have := form_belowP pp; rewrite a0 x0; move: b0; set b := t (at_point p).2; rewrite /left /right => b0.
  case: (four) => h; rewrite -(leq_pmul2l (_ : 0 < b * b)) ?muln_gt0 ?b0 //; have := leq_mul (leqnn (y * y)) h; lia.
case/and3P => pq; rewrite ltN !mulN => det rest px.
case: (leqP (t (at_point q).2 * x) (y * t (at_point q).1)) => [qx|qx]; first exact: (IH rest).
have qq : left (t (at_point q).1) (t (at_point q).2) (t (at_point q).1) (t (at_point q).2)
    <= right (t (at_point q).1) (t (at_point q).2) (t (at_point q).1) (t (at_point q).2).
  by case/andP: (rest) => /form_belowP.
move: (form_belowP pp) (form_belowP pq) qq det px qx.
move: (t (at_point p).1) (t (at_point p).2) (t (at_point q).1) (t (at_point q).2) => a b a' b' h1 h2 h3 det px qx.
pose D := a * b' - b * a'; pose f := x * b' - y * a'; pose g := y * a - b * x.
have D0 : 0 < D by rewrite /D; lia.
have ex : D * x = f * a + g * a' by rewrite /D /f /g; nia.
have ey : D * y = f * b + g * b' by rewrite /D /f /g; nia.
rewrite -(leq_pmul2l (_ : 0 < D * D)) ?muln_gt0 ?D0 //.
have -> : D * D * left x y x y = left (D * x) (D * y) (D * x) (D * y) by rewrite /left; case: (four); lia.
have -> : D * D * right x y x y = right (D * x) (D * y) (D * x) (D * y) by rewrite /right; case: (four); lia.
rewrite ex ey.
have -> : left (f * a + g * a') (f * b + g * b') (f * a + g * a') (f * b + g * b')
  = f * f * left a b a b + 2 * (f * g) * left a b a' b' + g * g * left a' b' a' b' by rewrite /left; case: (four); lia.
have -> : right (f * a + g * a') (f * b + g * b') (f * a + g * a') (f * b + g * b')
  = f * f * right a b a b + 2 * (f * g) * right a b a' b' + g * g * right a' b' a' b' by rewrite /right; case: (four); lia.
by rewrite !leq_add // leq_mul2l ?h1 ?h2 ?h3 orbT.
Qed.
End Directions.

(* Sums over two, three and four taps. *)
Section Taps.
Variables (o : nat) (u : 'I_o -> nat).
Let form k (h : 'I_k -> nat) := \sum_i \sum_j h i * h j * lag u (if i <= j then j - i else i - j).

Lemma two_taps (h : 'I_2 -> nat) : form h = lag u 0 * (\sum_i h i ^ 2) + 2 * (h ord0 * h ord_max * lag u 1).
Proof.
rewrite /form !big_ord_recl !big_ord0 /= -!mulnn /bump /= !addn0 ?subnn ?subn0 ?sub0n.
have -> : lift ord0 ord0 = ord_max :> 'I_2 by apply: val_inj.
lia.
Qed.

Lemma three_taps (h : 'I_3 -> nat) : exists x y z, [/\ \sum_i h i ^ 2 = x ^ 2 + y ^ 2 + z ^ 2 &
  form h = lag u 0 * (x ^ 2 + y ^ 2 + z ^ 2) + 2 * ((x * y + y * z) * lag u 1 + x * z * lag u 2)].
Proof.
rewrite /form !big_ord_recl !big_ord0 /= -!mulnn /bump /= !add1n !addn0 ?subSS ?subnn ?subn0 ?sub0n.
by do 3!eexists; split; rewrite -?mulnn ?addnA; [reflexivity|lia].
Qed.

Lemma four_taps (h : 'I_4 -> nat) : exists x y z v, [/\ \sum_i h i ^ 2 = x ^ 2 + y ^ 2 + z ^ 2 + v ^ 2 &
  form h = lag u 0 * (x ^ 2 + y ^ 2 + z ^ 2 + v ^ 2)
    + 2 * ((x * y + y * z + z * v) * lag u 1 + (x * z + y * v) * lag u 2 + x * v * lag u 3)].
Proof.
rewrite /form !big_ord_recl !big_ord0 /= -!mulnn /bump /= !add1n !addn0 ?subSS ?subnn ?subn0 ?sub0n.
by do 4!eexists; split; rewrite -?mulnn ?addnA; [reflexivity|lia].
Qed.
End Taps.

(* C(o, k)^2 <= s / d. Either sqrt(min(o, k)) is enough, or there is a proof for 2, 3 or 4 taps (or outputs). *)
Definition starts (w : seq direction) := if w is p :: _ then ((at_point p).2 =? 0)%num else false.
Definition proved (o k s : N) (d : positive) (w : seq direction) : bool :=
  let few := N.min o k in let many := N.max o k in let c := (s - N.pos d)%num in
  (few * N.pos d <=? s)%num || ((N.pos d <=? s)%num &&
  if (few =? 2)%num then directions_below true many c (N.pos d) w
  else if (few =? 3)%num then starts w && directions_below false many c (N.pos d) w
  else [&& (few =? 4)%num, (2 * N.pos d <=? s)%num, starts w & directions_below true many c (N.pos d) w]).

Section Proved.
Variables (o : nat) (many c d : N) (w : seq direction).
Hypothesis e : o = t many.
Let quadratic k := forall (u : 'I_o -> nat) (h : 'I_k -> nat),
  t d * (\sum_i \sum_j h i * h j * lag u (if i <= j then j - i else i - j)) <= (t c + t d) * (lag u 0 * \sum_i h i ^ 2).

Let start x y : starts w -> t (at_point (head (Direction (0, 0)%num [::] [::]) w)).2 * x
  <= y * t (at_point (head (Direction (0, 0)%num [::] [::]) w)).1.
Proof. by case: (w) => [|p s] //=; rewrite eqN => /eqP ->. Qed.

Lemma quadratic2 : directions_below true many c d w -> quadratic 2.
Proof.
move=> ok u h; rewrite two_taps; rewrite !big_ord_recl big_ord0 /= addn0.
have -> : lift ord0 ord0 = ord_max :> 'I_2 by apply: val_inj.
move: u; rewrite e => u; have := directions_belowP u ok (x := 0) (y := 1); rewrite muln0 => /(_ isT).
have := nat_Cauchy (h ord0) (h ord_max); move: (lag u 0) (lag u 1) => l0 l1.
rewrite !mul0n !muln0 !mul1n !add0n !addn0 !muln1 => cauchy le.
have {}le : t d * (2 * (h ord0 * h ord_max * l1)) <= t c * l0 * (2 * (h ord0 * h ord_max)).
  by have := leq_mul (leqnn (h ord0 * h ord_max)) le; lia.
have := leq_mul (leqnn (t c * l0)) cauchy; rewrite mulnDr; lia.
Qed.

Lemma quadratic3 : starts w -> directions_below false many c d w -> quadratic 3.
Proof.
move=> s ok u h; have [x [y [z [-> ->]]]] := three_taps u h.
move: u; rewrite e => u; have := directions_belowP u ok (start (x + z) (2 * y) s).
move: (lag u 0) (lag u 1) (lag u 2) => l0 l1 l2 le.
have c1 : 4 * (x * z) <= (x + z) ^ 2 := nat_AGM2 x z.
have c2 : (x + z) ^ 2 <= 2 * (x ^ 2 + z ^ 2) by rewrite sqrnD mulnDr !mul2n -!addnn; have := nat_Cauchy x z; lia.
have {}le : t d * (2 * (4 * ((x * y + y * z) * l1) + (x + z) ^ 2 * l2)) <= t c * ((2 * (x + z) ^ 2 + 4 * y ^ 2) * l0).
  by move: le; rewrite -!mulnn; lia.
have {}le : t d * (2 * (4 * ((x * y + y * z) * l1) + 4 * (x * z) * l2)) <= t c * (4 * (x ^ 2 + y ^ 2 + z ^ 2) * l0).
  apply: leq_trans (leq_trans _ le) _.
    by rewrite leq_mul2l leq_mul2l leq_add2l leq_mul2r c1 !orbT.
  rewrite leq_mul2l leq_mul2r; apply/orP; right; apply/orP; right; lia.
by rewrite [X in X <= _]mulnDr [X in _ <= X]mulnDl [X in _ <= X]addnC leq_add2l; move: le; lia.
Qed.

Let square a b : 2 * (a * b) <= a ^ 2 + b ^ 2. Proof. exact: nat_Cauchy. Qed.

Lemma quadratic4 : t d <= t c -> starts w -> directions_below true many c d w -> quadratic 4.
Proof.
move=> dc s ok u h; have [x [y [z [v [-> ->]]]]] := four_taps u h.
have := (lag_le u 1, lag_le u 2); move: u; rewrite e => u; have := directions_belowP u ok (start (x + v) (y + z) s).
move: (lag u 0) (lag u 1) (lag u 2) (lag u 3) => l0 l1 l2 l3 le [le1 le2].
pose p := x * y + z * v; pose q := x * z + y * v; pose n := x ^ 2 + y ^ 2 + z ^ 2 + v ^ 2.
have rle : 2 * (x * v) + 2 * (y * z) <= n.
  apply: leq_trans (leq_add (square x v) (square y z)) _; apply: eq_leq; rewrite /n.
  by move: (x ^ 2) (y ^ 2) (z ^ 2) (v ^ 2) => *; lia.
have [r rn] : exists r, r + (2 * (x * v) + 2 * (y * z)) = n by exists (n - (2 * (x * v) + 2 * (y * z))); rewrite subnK.
have pq : 2 * p <= r + 2 * q.
  have := square (x + z) (y + v); rewrite !sqrnD; move: rn; rewrite /p /q /n; clear.
  by move: (x ^ 2) (y ^ 2) (z ^ 2) (v ^ 2) => *; lia.
have qp : 2 * q <= r + 2 * p.
  have := square (x + y) (z + v); rewrite !sqrnD; move: rn; rewrite /p /q /n; clear.
  by move: (x ^ 2) (y ^ 2) (z ^ 2) (v ^ 2) => *; lia.
have key : 2 * (p * l1 + q * l2) <= 2 * (q * l1 + p * l2) + r * l0.
  move: pq qp le1 le2; clear; move: p q => p q; case: (leqP p q) => [/subnKC <-|/ltnW/subnKC <-]; move: (_ - _) => k pq qp le1 le2.
    by have := leq_mul (_ : 2 * k <= r) le2; rewrite mulnDr in qp *; move=> /(_ _); lia.
  by have := leq_mul (_ : 2 * k <= r) le1; rewrite mulnDr in pq *; move=> /(_ _); lia.
have c1 : 4 * (x * v) <= (x + v) ^ 2 := nat_AGM2 x v.
have c2 : 4 * (y * z) <= (y + z) ^ 2 := nat_AGM2 y z.
have sums : 4 * ((x * y + y * z + z * v) * l1 + (x * z + y * v) * l2 + x * v * l3) <=
    (2 * ((x + v) * (y + z)) + (y + z) ^ 2) * l1 + 2 * ((x + v) * (y + z)) * l2 + (x + v) ^ 2 * l3 + r * l0.
  have -> : (x + v) * (y + z) = p + q by rewrite /p /q; lia.
  have -> : x * y + y * z + z * v = p + y * z by rewrite /p; lia.
  have := leq_mul c1 (leqnn l3); have := leq_mul c2 (leqnn l1); rewrite -/q; move: key; clear.
  by move: (x * v) (y * z) ((x + v) ^ 2) ((y + z) ^ 2) p q => xv yz s1 s2 p q; lia.
have {}le : t d * (2 * ((2 * ((x + v) * (y + z)) + (y + z) ^ 2) * l1 + 2 * ((x + v) * (y + z)) * l2 + (x + v) ^ 2 * l3))
    <= t c * ((2 * (x + v) ^ 2 + 2 * (y + z) ^ 2) * l0) by move: le; rewrite -!mulnn; lia.
have squares : 2 * (x + v) ^ 2 + 2 * (y + z) ^ 2 + 2 * r = 4 * n.
  rewrite !sqrnD; move: rn; rewrite /n; clear; move: (x ^ 2) (y ^ 2) (z ^ 2) (v ^ 2) => *; lia.
rewrite -/n; move: sums le squares dc; clear; set A := (2 * _ + _) * l1 + _ + _; set B := (x * y + _ + _) * l1 + _ + _.
move: A B n (2 * (x + v) ^ 2 + 2 * (y + z) ^ 2) (t c) (t d) => A B m X C E sums le squares dc.
have h1 := leq_mul (leqnn (E * 2)) sums; have h2 := leq_mul dc (leqnn (2 * r * l0)).
have h3 : C * (X * l0) + C * (2 * r * l0) = C * (4 * m * l0) by rewrite -mulnDr -mulnDl squares.
lia.
Qed.
End Proved.

Theorem proved_bounded o k s d w : proved o k s d w -> bounded (conv (t o) (t k)) (t s) (t (N.pos d)).
Proof.
suff H many few : proved many few s d w -> (few <= many)%num -> bounded (conv (t many) (t few)) (t s) (t (N.pos d)).
  case: (N.le_ge_cases k o) => le ok; first exact: H.
  by apply: conv_swap; apply: H le; move: ok; rewrite /proved N.min_comm N.max_comm.
move=> ok le; have em : N.max many few = many by lia. have ef : N.min many few = few by lia.
move: ok; rewrite /proved em ef; set c := (s - N.pos d)%num; case/orP.
  rewrite !toN => min q f u v h H; have := conv_min H; have -> : minn (t many) (t few) = t few by lia.
  rewrite mul1n => {}H; apply: leq_trans (leq_mul (leqnn _) H) _.
  rewrite [X in X <= _]mulnA leq_mul2r; apply/orP; right.
  by rewrite [X in X <= _]mulnA leq_mul2r mulnC min orbT.
case/andP; rewrite leN => ds; have -> : t s = t c + t (N.pos d) by rewrite /c subN subnK.
case: N.eqb_spec => [->|_].
  by move=> ok; apply: conv_quadratic; apply: (quadratic2 (many := many)) ok.
case: N.eqb_spec => [->|_].
  by case/andP => first ok; apply: conv_quadratic; apply: (quadratic3 (many := many)) ok.
case/and4P => /N.eqb_eq -> twice first ok; apply: conv_quadratic; apply: (quadratic4 (many := many)) ok => //.
by move: twice; rewrite leN mulN /c subN; have -> : t 2%num = 2 by []; lia.
Qed.
