(* Trilinear forms: what the words of three tensors allow. All constants of the geometric inequality come from here. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

(* A form has events, and each event has three words. *)
Record form := Form {
  event_of : finType; first : finType; second : finType; third : finType;
  word1 : event_of -> first; word2 : event_of -> second; word3 : event_of -> third }.

(* The constant s/t: for all u, v, w, the sum of sqrt(u v w) over the events is at most sqrt(s/t) times
   sqrt(sum u) sqrt(sum v) sqrt(sum w). Without roots: f stands for sqrt(q u v w). *)
Definition bounded (F : form) (s t : nat) := forall q (f : event_of F -> nat) u v w,
  (forall e, f e ^ 2 <= q * (u (word1 e) * (v (word2 e) * w (word3 e)))) ->
  t * (\sum_e f e) ^ 2 <= s * q * ((\sum_i u i) * ((\sum_i v i) * (\sum_i w i))).

(** * Products *)

Definition times F G := Form (fun e : event_of F * event_of G => (word1 e.1, word1 e.2))
  (fun e => (word2 e.1, word2 e.2)) (fun e => (word3 e.1, word3 e.2)).

Lemma sum_pairs (I J : finType) (f : I * J -> nat) : \sum_e f e = \sum_(j : J) \sum_(i : I) f (i, j).
Proof. by rewrite exchange_big pair_bigA; apply: eq_bigr => -[]. Qed.

(* Constants multiply: first the events of one form with those of the other fixed, then the others. *)
Lemma bounded_times F G s t s' t' : bounded F s t -> bounded G s' t' -> bounded (times F G) (s * s') (t * t').
Proof.
move=> bF bG q f u v w H; rewrite !sum_pairs; set S := \sum_j _.
case: (posnP t) => [->|t0]; first by rewrite !mul0n.
have h (j : event_of G) : (t * \sum_i f (i, j)) ^ 2 <= t * s * q * ((\sum_i u (i, word1 j)) *
    ((\sum_i v (i, word2 j)) * (\sum_i w (i, word3 j)))).
  have := bF q (fun i => f (i, j)) (fun i => u (i, word1 j)) (fun i => v (i, word2 j)) (fun i => w (i, word3 j))
    (fun i => H (i, j)); rewrite -(leq_pmul2l t0) expnMn -mulnn !mulnA; exact.
have := bG _ _ (fun k => \sum_i u (i, k)) (fun k => \sum_i v (i, k)) (fun k => \sum_i w (i, k)) h.
rewrite -big_distrr /= -/S expnMn; set R := (\sum_(k : first G) _) * _ => {}h.
rewrite -(leq_pmul2l t0) -/R; apply: leq_trans (leq_trans _ h) _; apply: eq_leq; rewrite -?mulnn; nia.
Qed.

(* One index that all three words know, or two of them: Cauchy and Schwarz. *)
Definition in_all (T : finType) := Form (@id T) (@id T) (@id T).
Definition in_12 (T : finType) := Form (@id T) (@id T) (fun=> tt).
Definition in_13 (T : finType) := Form (@id T) (fun=> tt) (@id T).
Definition in_23 (T : finType) := Form (fun=> tt) (@id T) (@id T).
Definition one := in_all unit_finType.

Lemma one_term (I : finType) (f : I -> nat) i : f i <= \sum_j f j.
Proof. by rewrite (bigD1 i) //= leq_addr. Qed.

Lemma sum_unit (f : unit -> nat) : \sum_i f i = f tt. Proof. by rewrite (bigD1 tt) //= big1 ?addn0 // => -[]. Qed.

Lemma bounded_all T : bounded (in_all T) 1 1.
Proof.
move=> q f u v w H; rewrite !mul1n; apply: leq_trans (hoelder2 H) _; rewrite leq_mul2l leq_mul2l; do 2!(apply/orP; right).
by rewrite big_distrl; apply: leq_sum => i _; rewrite leq_mul2l one_term orbT.
Qed.

Lemma bounded_12 T : bounded (in_12 T) 1 1.
Proof.
move=> q f u v w H; rewrite !mul1n sum_unit; have {}H e : f e ^ 2 <= q * w tt * (u e * v e) by have := H e; rewrite /=; lia.
by apply: leq_trans (hoelder2 H) _; apply: eq_leq; rewrite /=; lia.
Qed.

Lemma bounded_13 T : bounded (in_13 T) 1 1.
Proof.
move=> q f u v w H; rewrite !mul1n sum_unit; have {}H e : f e ^ 2 <= q * v tt * (u e * w e) by have := H e; rewrite /=; lia.
by apply: leq_trans (hoelder2 H) _; apply: eq_leq; rewrite /=; lia.
Qed.

Lemma bounded_23 T : bounded (in_23 T) 1 1.
Proof.
move=> q f u v w H; rewrite !mul1n sum_unit; have {}H e : f e ^ 2 <= q * u tt * (v e * w e) by have := H e; rewrite /=; lia.
by apply: leq_trans (hoelder2 H) _; apply: eq_leq; rewrite /=; lia.
Qed.

(* The product of a list of forms, and an event of it. *)
Fixpoint product (T : Type) (F : T -> form) (s : seq T) := if s is d :: s' then times (F d) (product F s') else one.
Fixpoint event (T : Type) (F : T -> form) (e : forall d, event_of (F d)) (s : seq T) : event_of (product F s) :=
  if s is d :: s' then (e d, event e s') else tt.

Lemma bounded_product (T : Type) (F : T -> form) p r s : (forall d, bounded (F d) (p d) (r d)) ->
  bounded (product F s) (\prod_(d <- s) p d) (\prod_(d <- s) r d).
Proof.
move=> H; elim: s => [|d s IH]; rewrite ?big_nil ?big_cons; first exact: bounded_all.
exact: bounded_times.
Qed.

Section Events.
Variables (T : eqType) (F : T -> form) (e e' : forall d, event_of (F d)).
Lemma event_inj s : event e s = event e' s -> forall d, d \in s -> e d = e' d.
Proof.
elim: s => [|d s IH] //= [h hs] k; rewrite inE => /orP[/eqP ->|] //; exact: IH.
Qed.
Lemma event_word1 s : (forall d, word1 (e d) = word1 (e' d)) -> word1 (event e s) = word1 (event e' s).
Proof. by move=> h; elim: s => [|d s IH] //=; rewrite h IH. Qed.
Lemma event_word2 s : (forall d, word2 (e d) = word2 (e' d)) -> word2 (event e s) = word2 (event e' s).
Proof. by move=> h; elim: s => [|d s IH] //=; rewrite h IH. Qed.
Lemma event_word3 s : (forall d, word3 (e d) = word3 (e' d)) -> word3 (event e s) = word3 (event e' s).
Proof. by move=> h; elim: s => [|d s IH] //=; rewrite h IH. Qed.
End Events.

(** * Sets of events *)

Lemma sum_in (T : finType) (V : {set T}) : \sum_i (i \in V : nat) = #|V|.
Proof. by rewrite -sum1_card [RHS]big_mkcond; apply: eq_bigr => i _; case: (i \in V). Qed.

(* A set of events has no more than sqrt(s/t |words|) of them. *)
Lemma bounded_set F s t (V : {set event_of F}) : bounded F s t ->
  t * #|V| ^ 2 <= s * (#|touched (@word1 F) V| * (#|touched (@word2 F) V| * #|touched (@word3 F) V|)).
Proof.
move=> /(_ 1 (fun e => e \in V : nat) (fun i => i \in touched (@word1 F) V : nat)
  (fun i => i \in touched (@word2 F) V : nat) (fun i => i \in touched (@word3 F) V : nat)).
rewrite !sum_in muln1; apply => e; case: (boolP (e \in V)) => // eV; by rewrite !imset_f.
Qed.

(* A word that knows another one is touched at least as often. *)
Lemma knows_card (M A B : finType) (a : M -> A) (b : M -> B) (V : {set M}) :
  {in V &, forall u v, a u = a v -> b u = b v} -> #|touched b V| <= #|touched a V|.
Proof.
move=> ab; pose g x := [pick y | [exists u in V, (a u == x) && (b u == y)]].
apply: (@leq_trans #|[set Some x | x in touched b V]|); first by rewrite (@card_imset _ _ Some) // => ? ? [].
apply: (@leq_trans #|[set g x | x in touched a V]|); last exact: leq_imset_card.
apply/subset_leq_card/subsetP => _ /imsetP[_ /imsetP[v vV ->] ->]; apply/imsetP; exists (a v); first exact: imset_f.
rewrite /g; case: pickP => [y /existsP[u /and3P[uV /eqP e /eqP <-]]|/(_ (b v))]; first by rewrite (ab v u).
by case/negbT/existsP; exists v; rewrite vV !eqxx.
Qed.

(* Multiply-adds whose words know those of an event each. *)
Theorem described F s t (M A B C : finType) (a : M -> A) (b : M -> B) (c : M -> C) (V : {set M})
  (e : M -> event_of F) : bounded F s t -> {in V &, injective e} ->
  {in V &, forall u v, a u = a v -> word1 (e u) = word1 (e v)} ->
  {in V &, forall u v, b u = b v -> word2 (e u) = word2 (e v)} ->
  {in V &, forall u v, c u = c v -> word3 (e u) = word3 (e v)} ->
  t * #|V| ^ 2 <= s * (#|touched a V| * (#|touched b V| * #|touched c V|)).
Proof.
move=> bF inj ka kb kc; rewrite -(card_in_imset inj); apply: leq_trans (bounded_set _ bF) _.
rewrite -!imset_comp; by do !apply: leq_mul => //; apply: knows_card.
Qed.
