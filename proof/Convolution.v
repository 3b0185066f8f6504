(* Convolutions: their multiply-adds and words, the residue classes of taps, and the geometric inequality of a class
   and of all classes together. A matrix product has no spatial axes. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Geometry.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Convolution.
(* D spatial axes. Axis d has N d outputs, n d taps, the stride sigma d and the dilation delta d. A matrix product is
   the case D = 0. *)
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.   (* filters and channels of one group *)

Definition Position := [finType of {dffun forall d, 'I_(N d)}].
Definition Tap := [finType of {dffun forall d, 'I_(n d)}].
Definition Row := [finType of {dffun forall d, 'I_(sigma d * N d + delta d * n d)}].

(* A multiply-add: Out[sample, group, filter, position] += In[sample, group, channel, row] * Ker[group, filter,
   channel, tap] with row = sigma * position + delta * tap on every axis. *)
Definition Madd := [finType of Sample * Group * Filter * Channel * Position * Tap].
Implicit Types v : Madd.
Definition sample v := v.1.1.1.1.1.
Definition group v := v.1.1.1.1.2.
Definition filter v := v.1.1.1.2.
Definition channel v := v.1.1.2.
Definition position v : Position := v.1.2.
Definition tap v : Tap := v.2.

Lemma row_lt d (x : 'I_(N d)) (r : 'I_(n d)) : sigma d * x + delta d * r < sigma d * N d + delta d * n d.
Proof. by rewrite -addnS leq_add ?leq_mul ?(ltnW (ltn_ord x)) // ltn_mul2l delta_pos ltn_ord. Qed.

Definition row v : Row := finfun (fun d => Ordinal (row_lt (position v d) (tap v d))).

Definition out v := (sample v, group v, filter v, position v).
Definition inp v := (sample v, group v, channel v, row v).
Definition ker v := (group v, filter v, channel v, tap v).

Lemma rowE u v d : row u = row v ->
  sigma d * position u d + delta d * tap u d = sigma d * position v d + delta d * tap v d.
Proof. by move=> /(congr1 (fun f : Row => f d : nat)); rewrite !ffunE. Qed.

Lemma maddE u v : sample u = sample v -> group u = group v -> filter u = filter v -> channel u = channel v ->
  position u = position v -> tap u = tap v -> u = v.
Proof.
case: u => [[[[[? ?] ?] ?] ?] ?]; case: v => [[[[[? ?] ?] ?] ?] ?].
by rewrite /sample /group /filter /channel /position /tap /= => -> -> -> -> -> ->.
Qed.

(* The residue class of a multiply-add: taps that can meet the same row have the same delta * tap modulo sigma. *)
Definition Class := [finType of {dffun forall d, 'I_(sigma d)}].
Definition class v : Class := finfun (fun d => Ordinal (ltn_pmod (delta d * tap v d) (sigma_pos d))).

Lemma inp_class u v : inp u = inp v -> class u = class v.
Proof.
case=> _ _ _ e; apply/ffunP => d; rewrite !ffunE; apply: val_inj => /=.
by have := congr1 (fun k => k %% sigma d) (rowE d e); rewrite /= ![sigma d * _]mulnC !modnMDl.
Qed.

Lemma ker_class u v : ker u = ker v -> class u = class v.
Proof. by case=> _ _ _ e; rewrite /class e. Qed.

(* The constant of a class: on every axis the smaller of the number of its taps and the number of outputs that can
   share a row. These are every (delta / gcd)-th output, gcd that of stride and dilation. *)
Definition step d := delta d %/ gcdn (sigma d) (delta d).
Definition outputs d := (N d + (step d).-1) %/ step d.   (* N / step, rounded up *)
Definition taps (rho : Class) d := #|[set r : 'I_(n d) | delta d * r %% sigma d == rho d]|.
Definition constant (rho : Class) := \prod_d minn (outputs d) (taps rho d).

Lemma step_pos d : 0 < step d.
Proof. by rewrite divn_gt0 ?gcdn_gt0 ?delta_pos ?orbT // dvdn_leq ?dvdn_gcdr. Qed.

Lemma outputs_lt d (x : 'I_(N d)) : x %/ step d < outputs d.
Proof.
have := ltn_ceil (N d + (step d).-1) (step_pos d); rewrite -/(outputs d) ltn_divLR ?step_pos //.
have := ltn_ord x; have := step_pos d; nia.
Qed.

Lemma constant_le rho : constant rho <= \prod_d minn (N d) (n d).
Proof.
apply: leq_prod => d _; rewrite leq_min !geq_min; apply/andP; split; apply/orP; [left|right].
  by rewrite -ltnS ltn_divLR ?step_pos //; have := step_pos d; nia.
by rewrite -[X in _ <= X]card_ord max_card.
Qed.

(* The colour: on every axis the tap if there are few taps, else the output (its number among those that share a row).
   *)
Definition few rho d := taps rho d <= outputs d.
Definition Colour := [finType of {dffun forall d, ('I_(outputs d) + 'I_(n d))%type}].
Definition colour rho v : Colour := finfun (fun d : 'I_D =>
  if few rho d then inr (tap v d) else inl (Ordinal (outputs_lt (position v d))) : ('I_(outputs d) + 'I_(n d))%type).
Definition other rho v := (channel v, finfun (fun d : 'I_D => if few rho d then None else Some (tap v d))
  : {dffun forall d, option 'I_(n d)}).

Lemma colours rho (V : {set Madd}) : #|touched (colour rho) (slice class V rho)| <= constant rho.
Proof.
pose F d : {set 'I_(outputs d) + 'I_(n d)} := if few rho d
  then [set inr r | r in [set r : 'I_(n d) | delta d * r %% sigma d == rho d]] else [set inl x | x in 'I_(outputs d)].
pose G : simpl_pred (Colour) := family (fun d => [pred y in F d]); apply: (@leq_trans #|G|).
  apply/subset_leq_card/subsetP => _ /imsetP[v /sliceP[_ e] ->]; apply/familyP => d; rewrite !ffunE inE /F.
  by case: (few rho d); apply: imset_f; rewrite ?inE // -e ffunE.
rewrite /G card_family foldrE big_map big_enum /=; apply: leq_prod => d _.
have -> : #|(fun y => y \in F d)| = if few rho d then taps rho d else outputs d.
  by rewrite -/(#|F d|) /F; case: (few rho d); rewrite card_imset ?card_ord // => x y [].
by rewrite /few; case: ifP => h; rewrite leq_min leqnn ?h // ltnW // ltnNge h.
Qed.

Lemma same_output d (x y : 'I_(N d)) (r s : 'I_(n d)) : x %/ step d = y %/ step d ->
  sigma d * x + delta d * r = sigma d * y + delta d * s -> r = s.
Proof.
move=> xy e; have E : x = y :> nat.
  have xe := divn_eq x (step d); have ye := divn_eq y (step d); rewrite xe ye xy; congr (_ + _).
  have {}e : sigma d * x = sigma d * y %[mod delta d].
    by have := congr1 (fun k => k %% delta d) e; rewrite /= ![_ + delta d * _]addnC ![delta d * _]mulnC !modnMDl.
  move: e; clear xy xe ye; wlog le : x y / x <= y => [H e|/eqP].
    by case: (leqP x y) => [|/ltnW] le; [|apply/esym]; apply: H.
  rewrite eq_sym eqn_mod_dvd ?leq_mul // -mulnBr => dvd; apply/esym/eqP; rewrite eqn_mod_dvd //.
  have g0 : 0 < gcdn (sigma d) (delta d) by rewrite gcdn_gt0 sigma_pos.
  move: dvd; rewrite -{1}(divnK (dvdn_gcdl (sigma d) (delta d))) -{1}(divnK (dvdn_gcdr (sigma d) (delta d))) mulnAC.
  rewrite dvdn_pmul2r // Gauss_dvdr // /coprime -(eqn_pmul2r g0) muln_gcdl !divnK ?dvdn_gcdl ?dvdn_gcdr //.
  by rewrite mul1n gcdnC.
by move: e; rewrite E => /addnI/eqP; rewrite eqn_pmul2l // => /eqP/val_inj.
Qed.

(* The geometric inequality (1) for one class: |V|^2 <= C^2 |O| |I| |K|. *)
Theorem one_class rho (V : {set Madd}) (S := slice class V rho) :
  #|S| ^ 2 <= constant rho * (#|touched out S| * (#|touched inp S| * #|touched ker S|)).
Proof.
rewrite {}/S; set S := slice _ _ _.
apply: leq_trans (@coloured _ _ _ _ out inp ker _ _ (colour rho) (other rho) S _ _ _ _ _) _.
- move=> u v _ _ e [e1 e2 e3 e4] [e5 e6]; apply: maddE => //; apply/ffunP => d.
  move: (congr1 (fun f : Colour => f d) e) (congr1 (fun f : {dffun forall d, option 'I_(n d)} => f d) e6).
  by rewrite !ffunE; case: (few rho d) => [[] //|_ []].
- move=> u v _ _ _ [e1 e2 e3 e4] [_ e5 _ e6]; apply: maddE => //; apply/ffunP => d; apply: val_inj => /=.
  by have := rowE d e4; rewrite e6 => /addIn/eqP; rewrite eqn_pmul2l // => /eqP.
- move=> u v _ _ e [e1 e2 e3 e4]; rewrite /other e3; congr (_, _); apply/ffunP => d; rewrite !ffunE.
  move: (congr1 (fun f : Colour => f d) e); rewrite !ffunE; case: (few rho d) => // -[xy].
  by rewrite (same_output xy (rowE d e4)).
- by move=> u v _ _ _ [_ _ e1 e2]; rewrite /other e1 e2.
- move=> u v u' v' e e' [_ _ _ ex] [_ _ _ er]; apply/ffunP => d; move: (congr1 (fun f : Colour => f d) e).
  move: (congr1 (fun f : Colour => f d) e'); rewrite !ffunE ex; case: (few rho d) => // -> ->; by rewrite er.
by rewrite leq_mul2r colours orbT.
Qed.

(* All classes: weights w with w^3 C^2 <= 1, written with a common denominator. *)
Theorem all_classes (w : Class -> nat) (Q : nat) (V : {set Madd}) : (forall rho, w rho ^ 3 * constant rho <= Q) ->
  (\sum_(v in V) w (class v)) ^ 3 <= Q * #|V| * (#|touched out V| * #|touched inp V| * #|touched ker V|).
Proof.
apply: weighted => [u v _ _|u v _ _|rho]; [exact: inp_class|exact: ker_class|exact: one_class].
Qed.
End Convolution.
