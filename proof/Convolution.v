(* Convolutions: their multiply-adds and words, the residue classes of taps, and the geometric inequality of a class
   and of all classes together. A matrix product has no spatial axes. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Forms Constants Geometry.
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

(* Outputs that can share a row are every (delta / gcd)-th one, gcd that of stride and dilation. The constant of a class
   is a product over the axes: top / bottom is at least C^2 for these outputs and the taps of the class. *)
Definition step d := delta d %/ gcdn (sigma d) (delta d).
Definition outputs d := (N d + (step d).-1) %/ step d.   (* N / step, rounded up *)
Definition taps (rho : Class) d := #|[set r : 'I_(n d) | delta d * r %% sigma d == rho d]|.
Variables (top bottom : nat -> nat -> nat).
Hypothesis constants : forall o k, bounded (conv o k) (top o k) (bottom o k).
Definition numerator (rho : Class) := \prod_d top (outputs d) (taps rho d).
Definition denominator (rho : Class) := \prod_d bottom (outputs d) (taps rho d).

Lemma step_pos d : 0 < step d.
Proof. by rewrite divn_gt0 ?gcdn_gt0 ?delta_pos ?orbT // dvdn_leq ?dvdn_gcdr. Qed.

Lemma outputs_lt d (x : 'I_(N d)) : x %/ step d < outputs d.
Proof.
have := ltn_ceil (N d + (step d).-1) (step_pos d); rewrite -/(outputs d) ltn_divLR ?step_pos //.
have := ltn_ord x; have := step_pos d; nia.
Qed.

(* With C(N, n)^2 <= min(N, n), all classes have one constant. *)
Lemma simple_le rho : \prod_d minn (outputs d) (taps rho d) <= \prod_d minn (N d) (n d).
Proof.
apply: leq_prod => d _; rewrite leq_min !geq_min; apply/andP; split; apply/orP; [left|right].
  by rewrite -ltnS ltn_divLR ?step_pos //; have := step_pos d; nia.
by rewrite -[X in _ <= X]card_ord max_card.
Qed.

(* The taps of a class are equally far apart; the number of a tap of the class. *)
Definition period d := sigma d %/ gcdn (sigma d) (delta d).
Lemma gcd_pos d : 0 < gcdn (sigma d) (delta d). Proof. by rewrite gcdn_gt0 sigma_pos. Qed.
Lemma period_pos d : 0 < period d. Proof. by rewrite divn_gt0 ?gcd_pos // dvdn_leq ?dvdn_gcdl. Qed.
Lemma steps d : sigma d * step d = delta d * period d.
Proof. by rewrite /step /period !muln_divA ?dvdn_gcdl ?dvdn_gcdr // mulnC. Qed.

Lemma divide_mod a b x y : 0 < a -> a * x = a * y %[mod b] -> x = y %[mod b %/ gcdn a b].
Proof.
move=> a0; have g0 : 0 < gcdn a b by rewrite gcdn_gt0 a0.
wlog le : x y / y <= x => [H e|/eqP].
  by case: (leqP y x) => [|/ltnW] le; [|apply/esym]; apply: H.
rewrite eqn_mod_dvd ?leq_mul // -mulnBr => dvd; apply/eqP; rewrite eqn_mod_dvd //; move: dvd.
rewrite -{1}(divnK (dvdn_gcdl a b)) -{1}(divnK (dvdn_gcdr a b)) mulnAC dvdn_pmul2r // Gauss_dvdr //.
by rewrite /coprime -(eqn_pmul2r g0) muln_gcdl !divnK ?dvdn_gcdl ?dvdn_gcdr // mul1n gcdnC.
Qed.

Lemma same_class d (r s : nat) : delta d * r = delta d * s %[mod sigma d] -> r = s %[mod period d].
Proof. by move/(divide_mod (delta_pos d)); rewrite gcdnC. Qed.

Lemma in_class d (r : nat) : delta d * (r + period d) = delta d * r %[mod sigma d].
Proof. by rewrite mulnDr -steps addnC [sigma d * _]mulnC modnMDl. Qed.

Lemma number_lt rho v d : class v = rho -> tap v d %/ period d < taps rho d.
Proof.
move=> <-; set r := tap v d; pose lower (j : 'I_(r %/ period d).+1) := r %% period d + j * period d.
have lt j : lower j < n d.
  apply: leq_ltn_trans (ltn_ord r); rewrite /lower [X in _ <= X](divn_eq r (period d)) addnC leq_add2r leq_mul2r.
  by rewrite -ltnS ltn_ord orbT.
have eq (j : nat) : delta d * (r %% period d + j * period d) = delta d * (r %% period d) %[mod sigma d].
  by elim: j => [|j IH]; rewrite ?addn0 // mulSn addnCA addnC in_class.
rewrite -[X in X <= _]card_ord -(card_imset (f := fun j => Ordinal (lt j))) => [|i j [/addnI/eqP]]; last first.
  by rewrite eqn_pmul2r ?period_pos // => /eqP/val_inj.
apply/subset_leq_card/subsetP => _ /imsetP[j _ ->]; rewrite inE /= ffunE /= eq.
by rewrite {2}(divn_eq r (period d)) addnC eq.
Qed.

(* The rows of equal number of tap plus number of output are equal, as the outputs of equal remainder are. *)
Lemma row_number d (x y : 'I_(N d)) (r s : 'I_(n d)) : r = s %[mod period d] ->
  sigma d * x + delta d * r = sigma d * y + delta d * s ->
  x %% step d = y %% step d /\ x %/ step d + r %/ period d = y %/ step d + s %/ period d.
Proof.
move=> rs e.
have xy : x = y %[mod step d].
  apply: (divide_mod (sigma_pos d)).
  by have := congr1 (fun k => k %% delta d) e; rewrite /= ![_ + delta d * _]addnC ![delta d * _]mulnC !modnMDl.
split=> //; apply/eqP; rewrite -(eqn_pmul2l (_ : 0 < delta d * period d)) ?muln_gt0 ?delta_pos ?period_pos //.
move: e; rewrite {1}(divn_eq x (step d)) {1}(divn_eq y (step d)) {1}(divn_eq r (period d)) {1}(divn_eq s (period d)) xy rs.
have first q : sigma d * (q * step d) = delta d * period d * q by rewrite mulnCA steps mulnC.
have second q : delta d * (q * period d) = delta d * period d * q by rewrite [q * _]mulnC mulnA.
rewrite !mulnDr !first !second => e; apply/eqP; move: e.
clear; move: (delta d * period d) => m; lia.
Qed.

(* The geometric inequality (1) for one class: |V|^2 <= C^2 |O| |I| |K|. *)
Definition axis_form (rho : Class) d := times (in_12 [finType of 'I_(step d)]) (conv (outputs d) (taps rho d)).
Definition class_form rho := times (times (in_12 Sample) (in_all Group)) (times (times (in_13 Filter) (in_23 Channel))
  (product (axis_form rho) (enum 'I_D))).

Theorem one_class rho (V : {set Madd}) (S := slice class V rho) :
  denominator rho * #|S| ^ 2 <= numerator rho * (#|touched out S| * (#|touched inp S| * #|touched ker S|)).
Proof.
rewrite {}/S; set S := slice _ _ _; case: (set_0Vmem S) => [->|[v0 v0S]]; first by rewrite cards0 exp0n ?muln0.
have rhoS v : v \in S -> class v = rho by case/sliceP.
have j0 d := Ordinal (number_lt d (rhoS _ v0S)) : 'I_(taps rho d).
pose axis v d : event_of (axis_form rho d) := (Ordinal (ltn_pmod (position v d) (step_pos d)),
  (Ordinal (outputs_lt (position v d)), insubd (j0 d) (tap v d %/ period d))).
pose e v : event_of (class_form rho) := (sample v, group v, (filter v, channel v, event (axis v) (enum 'I_D))).
have number v d : v \in S -> insubd (j0 d) (tap v d %/ period d) = tap v d %/ period d :> nat.
  by move=> /rhoS vr; rewrite val_insubd number_lt.
have same u v d : u \in S -> v \in S -> tap u d = tap v d %[mod period d].
  move=> uS vS; apply: same_class; have : class u = class v by rewrite !rhoS.
  by move/(congr1 (fun f : Class => f d : nat)); rewrite !ffunE.
have bF : bounded (class_form rho) (numerator rho) (denominator rho).
  have axes d : bounded (axis_form rho d) (top (outputs d) (taps rho d)) (bottom (outputs d) (taps rho d)).
    by have := bounded_times (@bounded_12 [finType of 'I_(step d)]) (@constants (outputs d) (taps rho d)); rewrite !mul1n.
  have := bounded_times (bounded_times (@bounded_12 Sample) (@bounded_all Group))
    (bounded_times (bounded_times (@bounded_13 Filter) (@bounded_23 Channel)) (@bounded_product _ _ _ _ (enum 'I_D) axes)).
  by rewrite !mul1n !big_enum.
apply: (described (e := e) bF) => [u v uS vS|u v uS vS|u v uS vS|u v uS vS].
- case=> e1 e2 e3 e4 e5; have {}e5 d : axis u d = axis v d by apply: (event_inj e5); rewrite mem_enum.
  apply: maddE => //; apply/ffunP => d; apply: val_inj; case: (e5 d) => m i j /=.
    by rewrite (divn_eq (position u d) (step d)) (divn_eq (position v d) (step d)) m i.
  have := congr1 val j; rewrite /= !number // => {}j.
  by rewrite (divn_eq (tap u d) (period d)) (divn_eq (tap v d) (period d)) j (same u v).
- case=> e1 e2 e3 e4; congr (_, _, (_, _, _)) => //; apply: event_word1 => d.
  by rewrite /= e4.
- case=> e1 e2 e3 e4; congr (_, _, (_, _, _)) => //; apply: event_word2 => d.
  have [m i] := row_number (same u v d uS vS) (rowE d e4).
  by congr (_, _); apply: val_inj => //=; rewrite !number.
case=> e1 e2 e3 e4; congr (_, _, (_, _, _)) => //; apply: event_word3 => d.
by rewrite /= e4.
Qed.

(* All classes: weights w with w^3 C^2 <= 1, written with a common denominator. *)
Theorem all_classes (w : Class -> nat) (Q : nat) (V : {set Madd}) : (forall rho, 0 < denominator rho) ->
  (forall rho, w rho ^ 3 * numerator rho <= Q * denominator rho) ->
  (\sum_(v in V) w (class v)) ^ 3 <= Q * #|V| * (#|touched out V| * #|touched inp V| * #|touched ker V|).
Proof.
move=> pos; apply: weighted => [u v _ _|u v _ _|rho|]; [exact: inp_class|exact: ker_class|exact: one_class|exact: pos].
Qed.
End Convolution.
