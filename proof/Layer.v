(* Counting a layer with padding: its multiply-adds, its words, and the sum of the weights of its multiply-adds are
   products over the axes. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Geometry Convolution.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

(** * Sums over functions *)

(* The product of sums is the sum of products over all ways to take one term of each sum. *)
Lemma product_of_sums (I : finType) (T : I -> finType) (F : forall i, T i -> nat) :
  \sum_(f : {dffun forall i, T i}) \prod_i F i (f i) = \prod_i \sum_(x : T i) F i x.
Proof.
pose J := [finType of {i : I & T i}]; pose Q (i : I) := [pred j : J | tag j == i].
have of_index (G : J -> nat) i : \sum_(j in Q i) G j = \sum_(x : T i) G (Tagged T x).
  have := @sig_big_dep _ 0 addn_comoid I T (pred1 i) (fun _ _ => true) (fun k x => G (Tagged T x)).
  by rewrite (big_pred1 i) => [->|k] //; apply: eq_big => [[k x]|[k x] _] //=; rewrite andbT.
have term i : \sum_(x : T i) F i x = \sum_(j in Q i) F (tag j) (tagged j) by rewrite of_index.
rewrite (eq_bigr _ (fun i _ => term i))
  (@bigA_distr_big_dep _ 0 1 muln_muloid addn_addoid I J Q (fun _ j => F (tag j) (tagged j))) /=.
pose h (f : {dffun forall i, T i}) : {ffun I -> J} := [ffun i => Tagged T (f i)].
have hinj : injective h.
  move=> f g /ffunP e; apply/ffunP => i; have := e i; rewrite !ffunE => /eqP; by rewrite eq_Tagged => /eqP.
have image : [set h f | f in setT] = [set g in family Q].
  apply/eqP; rewrite eqEcard; apply/andP; split.
    by apply/subsetP => _ /imsetP[f _ ->]; rewrite inE; apply/familyP => i; rewrite ffunE inE /=.
  rewrite card_imset // cardsT cardsE card_family card_dep_ffun /=.
  have card i : #|Q i| = #|T i|.
    by rewrite -sum1_card (of_index (fun=> 1)) sum1_card.
  by apply: eq_leq; congr foldr; apply: eq_map => i; rewrite -card; apply: eq_card.
rewrite [RHS](eq_bigl (fun g => g \in [set h f | f in setT])) => [|g]; last by rewrite image inE.
rewrite big_imset => [|f g _ _ /hinj] //=; apply: eq_big => [f|f _]; first by rewrite inE.
by apply: eq_bigr => i _; rewrite ffunE.
Qed.

Lemma card_functions (I : finType) (T : I -> finType) : #|[finType of {dffun forall i, T i}]| = \prod_i #|T i|.
Proof.
have := product_of_sums (fun i (_ : T i) => 1).
rewrite (eq_bigr (fun _ : {dffun forall i, T i} => 1)) => [|f _]; last by rewrite big1.
by rewrite sum1_card => ->; apply: eq_bigr => i _; rewrite sum1_card.
Qed.

(** * A layer with padding *)

Section Layer.
(* Axis d of In has `length d` rows, of which the first follows after `before d` rows of zeros. *)
Variables (D : nat) (N n sigma delta before length : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.
Local Notation Madd := (Madd N n Sample Group Filter Channel).
Local Notation inp := (@inp _ N n sigma delta delta_pos Sample Group Filter Channel).
Local Notation class := (@class _ N n sigma delta sigma_pos Sample Group Filter Channel).
Implicit Types v : Madd.

(* Whether a row is one of In, and not padding. *)
Definition real d row := before d <= row < before d + length d.
(* The multiply-adds of the layer: those with a real input element. *)
Definition layer_work : {set Madd} :=
  [set v | [forall d, real d (sigma d * position v d + delta d * tap v d)]].

(* The sum over the work of a product over the axes. The first factor depends on sample, group, filter and channel. *)
Lemma sum_work (A : Sample * Group * Filter * Channel -> nat) (F : forall d, 'I_(N d) -> 'I_(n d) -> nat) :
  \sum_(v in layer_work) A v.1.1 * \prod_d F d (position v d) (tap v d) =
  (\sum_s A s) * \prod_d \sum_(x < N d) \sum_(r < n d) real d (sigma d * x + delta d * r) * F d x r.
Proof.
pose K d (x : 'I_(N d)) (r : 'I_(n d)) := real d (sigma d * x + delta d * r) * F d x r.
have -> : \sum_(v in layer_work) A v.1.1 * \prod_d F d (position v d) (tap v d) =
    \sum_v A v.1.1 * \prod_d K d (position v d) (tap v d).
  rewrite big_mkcond; apply: eq_bigr => v _; rewrite inE; case: (boolP [forall d, _]) => [/forallP all|].
    by congr (_ * _); apply: eq_bigr => d _; rewrite /K all mul1n.
  by rewrite negb_forall => /existsP[d no]; rewrite (bigD1 d) //= /K (negbTE no) mul0n muln0.
have -> : \sum_v A v.1.1 * \prod_d K d (position v d) (tap v d) =
    \sum_s \sum_(p : Position N) \sum_(t : Tap n) A s * \prod_d K d (p d) (t d) by rewrite !pair_bigA.
rewrite big_distrl /=.
apply: eq_bigr => s _; rewrite -(product_of_sums (fun d x => \sum_r K d x r)) big_distrr /=; apply: eq_bigr => p _.
by rewrite -(product_of_sums (fun d r => K d (p d) r)) big_distrr.
Qed.

(* Weights that are a product over the axes of a number for the residue. *)
Lemma sum_weights (weight : 'I_D -> nat -> nat) :
  \sum_(v in layer_work) \prod_d weight d (class v d) = #|Sample| * #|Group| * #|Filter| * #|Channel| *
  \prod_d \sum_(x < N d) \sum_(r < n d) real d (sigma d * x + delta d * r) * weight d (delta d * r %% sigma d).
Proof.
have := sum_work (fun=> 1) (fun d _ r => weight d (delta d * r %% sigma d)).
rewrite sum1_card !card_prod => <-; apply: eq_bigr => v _.
by rewrite mul1n; apply: eq_bigr => d _; rewrite ffunE.
Qed.

(* The pairs of an output and a tap on an axis that meet in a real row. *)
Definition pairs d := \sum_(x < N d) \sum_(r < n d) (real d (sigma d * x + delta d * r) : nat).

Lemma card_work : #|layer_work| = #|Sample| * #|Group| * #|Filter| * #|Channel| * \prod_d pairs d.
Proof.
have := sum_weights (fun _ _ => 1); rewrite -sum1_card (eq_bigr (fun=> 1)) => [->|v _]; last by rewrite big1.
by congr (_ * _); apply: eq_bigr => d _; apply: eq_bigr => x _; apply: eq_bigr => r _; rewrite muln1.
Qed.

Lemma card_group g :
  #|slice (@group _ N n _ _ _ _) layer_work g| <= #|Sample| * #|Filter| * #|Channel| * \prod_d pairs d.
Proof.
have := sum_work (fun s => s.1.1.2 == g) (fun _ _ _ => 1).
rewrite (_ : \sum_(v in layer_work) _ = #|slice (@group _ N n _ _ _ _) layer_work g|) => [->|]; last first.
  rewrite -sum1_card [RHS]big_mkcond [LHS]big_mkcond; apply: eq_bigr => v _; rewrite big1 // muln1.
  by rewrite [v \in slice _ _ _]inE; case: (v \in layer_work) => //=; rewrite /group; case: (_ == g).
apply: leq_mul; last first.
  by apply: eq_leq; apply: eq_bigr => d _; apply: eq_bigr => x _; apply: eq_bigr => r _; rewrite muln1.
have -> : \sum_(s : Sample * Group * Filter * Channel) (s.1.1.2 == g : nat) =
    \sum_(a : Sample) \sum_(h : Group) \sum_(f : Filter) \sum_(c : Channel) (h == g : nat) by rewrite !pair_bigA.
rewrite (eq_bigr (fun=> #|Filter| * #|Channel|)) => [|s _]; first by rewrite sum_nat_const mulnA.
rewrite (bigD1 g) //= eqxx [X in _ + X]big1 => [|h /negbTE ->]; last by rewrite big1 // => f _; rewrite big1.
by rewrite addn0 !sum_nat_const muln1.
Qed.

(** * Words *)

Lemma out_words (V : {set Madd}) :
  #|touched (@out _ N n _ _ _ _) V| <= #|Sample| * #|Group| * #|Filter| * \prod_d N d.
Proof.
apply: leq_trans (max_card _) _; rewrite !card_prod card_functions.
by under eq_bigr do rewrite card_ord.
Qed.

Lemma ker_words (V : {set Madd}) :
  #|touched (@ker _ N n _ _ _ _) V| <= #|Group| * #|Filter| * #|Channel| * \prod_d n d.
Proof.
apply: leq_trans (max_card _) _; rewrite !card_prod card_functions.
by under eq_bigr do rewrite card_ord.
Qed.

(* The rows of an axis that are read. *)
Definition is_read d row :=
  real d row && [exists x : 'I_(N d), [exists r : 'I_(n d), row == sigma d * x + delta d * r]].

Lemma inp_words : #|touched inp layer_work| <= #|Sample| * #|Group| * #|Channel| *
  \prod_d \sum_(row < sigma d * N d + delta d * n d) (is_read d row : nat).
Proof.
pose R (d : 'I_D) := [pred row : 'I_(sigma d * N d + delta d * n d) | is_read d row].
apply: (@leq_trans #|setX [set: Sample * Group * Channel] [set y : Row N n sigma delta | y \in family R]|).
  apply/subset_leq_card/subsetP => _ /imsetP[v vw ->]; rewrite in_setX in_setT in_set /=; apply/familyP => d.
  rewrite inE /= ffunE /=.
  move: vw; rewrite inE => /forallP/(_ d) re; rewrite /is_read re; apply/existsP; exists (position v d).
  by apply/existsP; exists (tap v d).
rewrite cardsX cardsT cardsE !card_prod card_family foldrE big_map big_enum /=; apply: eq_leq; congr (_ * _).
apply: eq_bigr => d _; rewrite -sum1_card big_mkcond; apply: eq_bigr => row _.
by rewrite unfold_in /=; case: (is_read d row).
Qed.

Lemma tapsE (rho : Class sigma) d : taps n delta rho d = \sum_(r < n d) (delta d * r %% sigma d == rho d : nat).
Proof. by rewrite /taps -sum1_card big_mkcond; apply: eq_bigr => r _; rewrite inE; case: (_ == _). Qed.
End Layer.
