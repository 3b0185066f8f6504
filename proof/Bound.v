(* The universal lower bound of docs/bounds.md, for every execution of a convolution. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Forms Constants Geometry Execution Segments Schedule Convolution.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Bound.
(* The layer: axis d has N d outputs and n d taps, the stride sigma d and the dilation delta d. A matrix product has D
   = 0 axes. `work` are the multiply-adds with a real input element; padding is left out. *)
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.   (* filters and channels of one group *)
Local Notation Madd := (Madd N n Sample Group Filter Channel).
Local Notation out := (@out _ N n Sample Group Filter Channel).
Local Notation inp := (@inp _ N n sigma delta delta_pos Sample Group Filter Channel).
Local Notation ker := (@ker _ N n Sample Group Filter Channel).
Local Notation group := (@group _ N n Sample Group Filter Channel).
Local Notation class := (@class _ N n sigma delta sigma_pos Sample Group Filter Channel).
Variable work : {set Madd}.

(* The words that some multiply-add touches. *)
Definition words := #|touched out work| + #|touched inp work| + #|touched ker work|.

(* Squares of the constants of one axis: C(outputs, taps)^2 <= top / bottom. *)
Variables (top bottom : nat -> nat -> nat).
Hypothesis constants : forall o k, bounded (conv o k) (top o k) (bottom o k).
Hypothesis bottom_pos : forall o k, 0 < bottom o k.
(* Weights of the residue classes with w^3 C^2 <= 1, written with a common denominator: w^3 C^2 <= Q. *)
Variables (w : Class sigma -> nat) (Q : nat).
Hypothesis weights : forall rho, w rho ^ 3 * numerator N n delta top rho <= Q * denominator N n delta bottom rho.

(* Inequality (2): a sum S of words is at least three totals whose product is H^3 / (Q q) or more, and of which none
   is below its floor. H is the sum of the weights of all multiply-adds. *)
Definition bound (q S : nat) := exists x y z,
  [/\ #|touched out work| <= x, #|touched inp work| <= y & #|touched ker work| <= z] /\
  (\sum_(v in work) w (class v)) ^ 3 <= Q * q * (x * y * z) /\ x + y + z <= S.

Let inequality (V : {set Madd}) : (\sum_(v in V) w (class v)) ^ 3
  <= Q * #|V| * (#|touched out V| * #|touched inp V| * #|touched ker V|).
Proof.
apply: (@all_classes _ _ _ _ _ sigma_pos delta_pos _ _ _ _ top bottom constants w Q V _ weights) => rho; exact: prodn_gt0.
Qed.

(* Accessed words: every part of the work (a process, or one of its segments) pays for each word that it touches. *)
Theorem accessed_bound (Part : finType) (does : Madd -> Part) (q : nat) :
  (forall i g, #|slice group (slice does work i) g| <= q) ->
  bound q (total work does out + total work does inp + total work does ker).
Proof.
by move=> cap; apply: (accessed (group := group)) cap => [u v []|u v []|u v []|V] //; exact: inequality.
Qed.

(* Received words: P processes with memories of mem words, none of which performs more than cap multiply-adds, cut
   their work into cuts + 1 segments of at most `step` multiply-adds. No group has more than `size`, and q is at least
   the smaller of the two. *)
Section Received.
Variables (P : finType) (mem cap cuts step size q : nat).
Hypotheses (steps : cap <= step * cuts.+1) (sizes : forall g, #|slice group work g| <= size).
Hypothesis le : minn step size <= q.

Theorem universal_bound (e : execution out inp ker work P mem cap) :
  bound q (all_received e + #|P| * cuts * mem + words).
Proof. by apply: (executed e steps sizes) le => [u v []|u v []|u v []|V] //; exact: inequality. Qed.

(* The process that receives most, in the three passes. The forward pass writes Out, and reads In and Ker. *)
Theorem forward_bound (e : execution out inp ker work P mem cap) :
  bound q (#|P| * most_received e + #|P| * cuts * mem + words).
Proof. by apply: (executed_most e steps sizes) le => [u v []|u v []|u v []|V] //; exact: inequality. Qed.

(* The backward-data pass writes In, and reads Out and Ker. *)
Theorem backward_data_bound (e : execution inp out ker work P mem cap) :
  bound q (#|P| * most_received e + #|P| * cuts * mem + words).
Proof.
have [u v []|u v []|u v []|V|x [y [z [[? ? ?] [v s]]]]] // :=
  executed_most (w := fun v => w (class v)) (Q := Q) e steps sizes _ _ _ _ le.
  by rewrite [#|touched inp V| * _]mulnC; apply: inequality.
exists y, x, z; do !split=> //; first by rewrite [y * x]mulnC.
by rewrite [y + x]addnC /words [#|touched out work| + #|touched inp work|]addnC.
Qed.

(* The backward-weight pass writes Ker, and reads Out and In. *)
Theorem backward_weight_bound (e : execution ker out inp work P mem cap) :
  bound q (#|P| * most_received e + #|P| * cuts * mem + words).
Proof.
have [u v []|u v []|u v []|V|x [y [z [[? ? ?] [v s]]]]] // :=
  executed_most (w := fun v => w (class v)) (Q := Q) e steps sizes _ _ _ _ le.
  by rewrite -[#|touched ker V| * _ * _]mulnA [#|touched ker V| * _]mulnC; apply: inequality.
exists y, z, x; do !split=> //; first by rewrite (_ : y * z * x = x * y * z) // mulnC mulnA.
have -> : words = #|touched ker work| + #|touched out work| + #|touched inp work| by rewrite /words addnC addnA.
by have -> : y + z + x = x + y + z by lia.
Qed.
End Received.

(* One segment. If all processes together receive x words of Out, y of In and z of Ker, and no part of the work has
   more than q multiply-adds, this is inequality (2) for each tensor by itself: it received words plus those that are
   touched at all. *)
Definition volume (q x y z : nat) := (\sum_(v in work) w (class v)) ^ 3 <=
  Q * q * ((x + #|touched out work|) * (y + #|touched inp work|) * (z + #|touched ker work|)).

Section Each.
Variables (P : finType) (mem cap size q : nat).
Hypotheses (sizes : forall g, #|slice group work g| <= size) (le : minn cap size <= q).

Let og u v : out u = out v -> group u = group v. Proof. by case. Qed.
Let ig u v : inp u = inp v -> group u = group v. Proof. by case. Qed.
Let kg u v : ker u = ker v -> group u = group v. Proof. by case. Qed.

Theorem forward_each (e : execution out inp ker work P mem cap) :
  volume q (received_out e) (received_inp e) (received_ker e).
Proof. exact: (executed_each e sizes og ig kg inequality le). Qed.

Theorem backward_data_each (e : execution inp out ker work P mem cap) :
  volume q (received_inp e) (received_out e) (received_ker e).
Proof.
have geometry (V : {set Madd}) : (\sum_(v in V) w (class v)) ^ 3
    <= Q * #|V| * (#|touched inp V| * #|touched out V| * #|touched ker V|).
  by rewrite [#|touched inp V| * _]mulnC; apply: inequality.
apply: leq_trans (executed_each e sizes ig og kg geometry le) _.
by apply: eq_leq; congr (_ * _); rewrite [(received_out e + _) * _]mulnC.
Qed.

Theorem backward_weight_each (e : execution ker out inp work P mem cap) :
  volume q (received_inp e) (received_ker e) (received_out e).
Proof.
have geometry (V : {set Madd}) : (\sum_(v in V) w (class v)) ^ 3
    <= Q * #|V| * (#|touched ker V| * #|touched out V| * #|touched inp V|).
  by rewrite -[#|touched ker V| * _ * _]mulnA [#|touched ker V| * _]mulnC; apply: inequality.
apply: leq_trans (executed_each e sizes kg og ig geometry le) _.
by apply: eq_leq; congr (_ * _); rewrite -[(received_out e + _) * _ * _]mulnA mulnC.
Qed.
End Each.
End Bound.

Section Convolution.
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.
Variable work : {set Madd N n Sample Group Filter Channel}.
Variables (P : finType) (mem cap : nat).
Variable e : execution (@out _ N n _ _ _ _) (@inp _ N n sigma delta delta_pos _ _ _ _) (@ker _ N n _ _ _ _)
  work P mem cap.

(* A layer of F multiply-adds, with one constant m, the product over axes of min(outputs, taps), and without floors:
   27 F^3 <= m q (P most_received + P (n-1) M + |Out| + |In| + |Ker|)^3 for n segments of q multiply-adds. *)
Theorem convolution (cuts q : nat) : cap <= q * cuts.+1 ->
  27 * #|work| ^ 3 <= (\prod_d minn (N d) (n d)) * q *
    (#|P| * most_received e + #|P| * cuts * mem + words sigma delta_pos work) ^ 3.
Proof.
move=> steps; set m := \prod_d _.
have weights (rho : Class sigma) : 1 ^ 3 * numerator N n delta minn rho <= m * denominator N n delta (fun _ _ => 1) rho.
  by rewrite mul1n /denominator big1 // muln1 simple_le.
have sizes g : #|slice (@group _ N n _ _ _ _) work g| <= #|work| by apply/subset_leq_card/subsetP => v /sliceP[].
have [x [y [z [_ [v s]]]]] := forward_bound (w := fun=> 1) sigma_pos conv_min (fun _ _ => isT) weights steps sizes (geq_minl _ _) e.
rewrite sum1_card in v; apply: leq_trans (no_floor v) _.
by rewrite leq_mul2l leq_exp2r // s orbT.
Qed.

(* Without a memory limit: n = 1. *)
Corollary memory_independent : 27 * #|work| ^ 3 <= (\prod_d minn (N d) (n d)) * cap *
  (#|P| * most_received e + words sigma delta_pos work) ^ 3.
Proof. by have := @convolution 0 cap; rewrite muln1 muln0 mul0n addn0; apply. Qed.
End Convolution.
