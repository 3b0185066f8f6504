(* Binary numbers, with which `vm_compute` counts in no time, mean the natural numbers of the theorems. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia NArith.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Local Notation t := N.to_nat.

Lemma leN a b : N.leb a b = (t a <= t b). Proof. by apply/idP/idP; lia. Qed.
Lemma ltN a b : N.ltb a b = (t a < t b). Proof. by apply/idP/idP; lia. Qed.
Lemma eqN a b : N.eqb a b = (t a == t b). Proof. by apply/idP/idP; lia. Qed.
Lemma mulN a b : t (N.mul a b) = t a * t b. Proof. exact: N2Nat.inj_mul. Qed.
Lemma addN a b : t (N.add a b) = t a + t b. Proof. exact: N2Nat.inj_add. Qed.
Lemma subN a b : t (N.sub a b) = t a - t b. Proof. exact: N2Nat.inj_sub. Qed.
Lemma minN a b : t (N.min a b) = minn (t a) (t b). Proof. lia. Qed.
Lemma cubeN a : t (N.pow a 3) = t a ^ 3. Proof. by rewrite N2Nat.inj_pow /= !expnS expn0; nia. Qed.
Lemma succN a : t (N.succ a) = (t a).+1. Proof. lia. Qed.
Lemma posN (p : positive) : 0 < t (N.pos p). Proof. lia. Qed.
Definition toN := (leN, ltN, eqN, mulN, addN, subN, minN, cubeN).

Lemma divmodN a (b : positive) :
  t (N.div a (N.pos b)) = t a %/ t (N.pos b) /\ t (N.modulo a (N.pos b)) = t a %% t (N.pos b).
Proof.
have e := N.div_mod a (N.pos b) (fun h => ltac:(discriminate h)).
have lt : t (N.modulo a (N.pos b)) < t (N.pos b).
  by have := N.mod_lt a (N.pos b) (fun h => ltac:(discriminate h)); lia.
move: (congr1 t e); rewrite addN mulN mulnC => ->.
by rewrite divnMDl ?posN // divn_small // addn0 modnMDl modn_small.
Qed.
Lemma divN a b : t (N.div a b) = t a %/ t b.
Proof. by case: b => [|b]; [case: a|case: (divmodN a b)]. Qed.
Lemma modN a (b : positive) : t (N.modulo a (N.pos b)) = t a %% t (N.pos b). Proof. by case: (divmodN a b). Qed.

Lemma dvdN a b : N.divide a b <-> t a %| t b.
Proof.
split=> [[k ->]|/dvdnP[k e]]; first by rewrite mulN dvdn_mull.
by exists (N.of_nat k); apply: N2Nat.inj; rewrite mulN Nat2N.id.
Qed.

Lemma gcdN a b : t (N.gcd a b) = gcdn (t a) (t b).
Proof.
apply/eqP; rewrite eqn_dvd dvdn_gcd; apply/andP; split.
  by apply/andP; split; apply/dvdN; [exact: N.gcd_divide_l|exact: N.gcd_divide_r].
rewrite -(Nat2N.id (gcdn _ _)); apply/dvdN; apply: N.gcd_greatest; apply/dvdN; rewrite Nat2N.id.
  exact: dvdn_gcdl.
exact: dvdn_gcdr.
Qed.

(** * Sums and products *)

(* f 0 + ... + f (n - 1) *)
Definition sumN (n : N) (f : N -> N) : N :=
  snd (N.iter n (fun state : N * N => (N.succ state.1, N.add state.2 (f state.1))) (0%num, 0%num)).

Lemma sumN_state (f : N -> N) k :
  Nat.iter k (fun state : N * N => (N.succ state.1, N.add state.2 (f state.1))) (0%num, 0%num)
  = (N.of_nat k, N.of_nat (\sum_(i < k) t (f (N.of_nat i)))).
Proof.
elim: k => [|k IH]; first by rewrite big_ord0.
rewrite /= IH /= big_ord_recr /=; congr (_, _); first lia.
by apply: N2Nat.inj; rewrite addN !Nat2N.id.
Qed.

Lemma sumN_nat n f : t (sumN n f) = \sum_(i < t n) t (f (N.of_nat i)).
Proof. by rewrite /sumN N2Nat.inj_iter sumN_state /= Nat2N.id. Qed.

Lemma sumNE n f (g : nat -> nat) : (forall i, t (f i) = g (t i)) -> t (sumN n f) = \sum_(i < t n) g i.
Proof. by move=> fg; rewrite sumN_nat; apply: eq_bigr => i _; rewrite fg Nat2N.id. Qed.

Lemma sumN_le n f (g : nat -> nat) : (forall i, g (t i) <= t (f i)) -> \sum_(i < t n) g i <= t (sumN n f).
Proof. by move=> fg; rewrite sumN_nat; apply: leq_sum => i _; have := fg (N.of_nat i); rewrite Nat2N.id. Qed.

Definition prodN (T : Type) (f : T -> N) (s : seq T) : N := foldr (fun x z => N.mul (f x) z) 1%num s.

Lemma prodNE (T : Type) (f : T -> N) (s : seq T) : t (prodN f s) = \prod_(x <- s) t (f x).
Proof. by elim: s => [|x s IH]; rewrite ?big_nil ?big_cons //= mulN IH. Qed.

(* 1 if a test is passed *)
Definition oneN (b : bool) : N := if b then 1%num else 0%num.
Lemma oneNE b : t (oneN b) = b. Proof. by case: b. Qed.
