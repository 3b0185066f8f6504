(* A training step: three passes over the same multiply-adds. What one pass has gathered may stay in memory for
   another. What each pass does is an execution by itself, so the bound of one pass holds three times. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Forms Constants Geometry Execution Segments Schedule Convolution Bound.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

(** * What an execution of a training step is *)

(* The forward pass, the backward-data pass, and the backward-weight pass. *)
Inductive pass := Forward | Data | Weight.
Definition same i j := match i, j with Forward, Forward | Data, Data | Weight, Weight => true | _, _ => false end.

Section Step.
(* Multiply-adds and words are those of Execution.v. `work` are the multiply-adds of each pass. *)
Variables (M A B C : finType) (out : M -> A) (inp : M -> B) (ker : M -> C) (work : pass -> {set M}).

(* A word of one of six tensors: a value of dOut (the gradient of Out), In or Ker, or a partial sum of Out, dIn or
   dKer. *)
Definition step_word := [finType of word A B C + word A B C].
Definition Value (x : word A B C) : step_word := inl x.
Definition Sum (x : word A B C) : step_word := inr x.
Definition is_partial (x : step_word) := if x is inr _ then true else false.
Local Notation Out := (@Out A B C).
Local Notation In := (@In A B C).
Local Notation Ker := (@Ker A B C).

(* What a multiply-add of a pass reads, and what it adds to. *)
Definition reads i v : seq step_word := match i with
  | Forward => [:: Value (In (inp v)); Value (Ker (ker v))]
  | Data => [:: Value (Out (out v)); Value (Ker (ker v))]
  | Weight => [:: Value (Out (out v)); Value (In (inp v))]
  end.
Definition writes i v : step_word := match i with
  | Forward => Sum (Out (out v))
  | Data => Sum (In (inp v))
  | Weight => Sum (Ker (ker v))
  end.

(* The events are those of one pass, and mean the same. The passes may overlap. *)
Inductive step_event := Perform of pass & M | Give of step_word | Take of step_word | Forget of step_word.

Definition step_allowed (memory : {set step_word}) (e : step_event) : bool :=
  match e with
  | Perform i v => all (fun x => x \in memory) (reads i v)
  | Give x => x \in memory
  | Take x => true
  | Forget x => ~~ is_partial x
  end.

Definition step_after (memory : {set step_word}) (e : step_event) : {set step_word} :=
  match e with
  | Perform i v => writes i v |: memory
  | Give x => if is_partial x then memory :\ x else memory
  | Take x => x |: memory
  | Forget x => memory :\ x
  end.

Definition step_run : {set step_word} -> seq step_event -> {set step_word} := foldl step_after.
Fixpoint step_legal (memory : {set step_word}) (s : seq step_event) : bool :=
  if s is e :: s' then step_allowed memory e && step_legal (step_after memory e) s' else true.

Definition performs i v e := if e is Perform j u then same j i && (u == v) else false.
Definition performs_in i e := if e is Perform j _ then same j i else false.
Definition gives x e := if e is Give y then y == x else false.
Definition takes x e := if e is Take y then y == x else false.
Definition takes_any e := if e is Take _ then true else false.

(* The words that a process owns: of dOut, In and Ker at the start, of Out, dIn and dKer at the end. *)
Definition step_start (P : finType) (owner : step_word -> P) p : {set step_word} :=
  [set x | ~~ is_partial x & owner x == p].

(* An execution of a step on the processes P. No process performs more than `cap` multiply-adds in a pass. Memories
   are not limited. *)
Record step (P : finType) (cap : nat) := Step {
  step_events : P -> seq step_event;
  step_owner : step_word -> P;
  each_once : forall i v, \sum_p count (performs i v) (step_events p) = (v \in work i);
  each_capped : forall i p, count (performs_in i) (step_events p) <= cap;
  each_lawful : forall p, step_legal (step_start step_owner p) (step_events p);
  each_finish : forall p x, Sum x \in step_run (step_start step_owner p) (step_events p) -> step_owner (Sum x) = p;
  each_delivered : forall x, \sum_p count (gives x) (step_events p) = \sum_p count (takes x) (step_events p) }.

(* How often processes receive a word; all words that a process receives; those of the one that receives most. *)
Definition taken P cap (e : step P cap) x := \sum_p count (takes x) (step_events e p).
Definition step_received P cap (e : step P cap) p := count takes_any (step_events e p).
Definition step_most P cap (e : step P cap) := \max_p step_received e p.

(* The words of each tensor that all processes receive together. *)
Section Tensors.
Variables (P : finType) (cap : nat) (e : step P cap).
Definition took_out := \sum_x taken e (Sum (Out x)).
Definition took_dout := \sum_x taken e (Value (Out x)).
Definition took_inp := \sum_x taken e (Value (In x)).
Definition took_dinp := \sum_x taken e (Sum (In x)).
Definition took_ker := \sum_x taken e (Value (Ker x)).
Definition took_dker := \sum_x taken e (Sum (Ker x)).
End Tensors.

Lemma step_average P cap (e : step P cap) :
  (took_out e + took_dout e) + (took_inp e + took_dinp e) + (took_ker e + took_dker e) <= #|P| * step_most e.
Proof.
apply: (@leq_trans (\sum_p step_received e p)); last first.
  by rewrite -sum_nat_const; apply: leq_sum => p _; apply: (@leq_bigmax _ (fun p => step_received e p)).
have by_word s : count takes_any s = \sum_x count (takes x) s.
  elim: s => [|f s IH] /=; first by rewrite big1.
  rewrite IH big_split /=; congr (_ + _); case: f => [i v|y|y|y] /=; try by rewrite big1.
  by rewrite (bigD1 y) //= eqxx big1 // => x /negbTE; rewrite eq_sym => ->.
rewrite /step_received (eq_bigr _ (fun p _ => by_word (step_events e p))) exchange_big /=.
apply: (@leq_trans (took_dout e + took_inp e + took_ker e + (took_out e + took_dinp e + took_dker e))); first by lia.
by rewrite !big_sumType.
Qed.

(** * What a pass does is an execution *)

Lemma sameP i j : reflect (i = j) (same i j). Proof. by case: i; case: j; constructor. Qed.

Lemma count_pmap (T U : Type) (f : T -> option U) (c : pred U) (s : seq T) :
  count c (pmap f s) = count (fun x => if f x is Some y then c y else false) s.
Proof. by elim: s => //= x s IH; case: (f x) => //= y; rewrite IH. Qed.

Section Pass.
(* The words of the pass i among those of the step. *)
Variables (A' B' C' : finType) (o : M -> A') (a : M -> B') (b : M -> C') (i : pass).
Variable word_of : word A' B' C' -> step_word.
Hypothesis inj : injective word_of.
Hypothesis partial : forall x, is_partial (word_of x) = is_sum x.
Hypothesis readsE : forall v, reads i v = [:: word_of (Execution.In _ _ (a v)); word_of (Execution.Ker _ _ (b v))].
Hypothesis writesE : forall v, writes i v = word_of (Execution.Out _ _ (o v)).
Hypothesis others : forall j v x, writes j v = word_of x -> j = i.

Let view x := [pick y | word_of y == x].
Let viewE y : view (word_of y) = Some y.
Proof. by rewrite /view; case: pickP => [z /eqP/inj ->|/(_ y)]; rewrite ?eqxx. Qed.

(* The part of an event that is of this pass. *)
Let part (e : step_event) : option (event M A' B' C') := match e with
  | Perform j v => if same j i then Some (Compute _ _ _ v) else None
  | Give x => omap (@Send _ _ _ _) (view x)
  | Take x => omap (@Receive _ _ _ _) (view x)
  | Forget x => omap (@Drop _ _ _ _) (view x)
  end.

Let agree (m : {set word A' B' C'}) (n : {set step_word}) := forall x, (x \in m) = (word_of x \in n).

Let view_case x : (exists2 y, x = word_of y & view x = Some y) \/ (forall y, word_of y != x) /\ view x = None.
Proof.
rewrite /view; case: pickP => [y /eqP <-|no]; first by left; exists y.
by right; split=> // y; rewrite no.
Qed.

Let part_ok m n e : agree m n -> step_allowed n e ->
  (if part e is Some f then allowed a b m f else true)
  /\ agree (if part e is Some f then after o m f else m) (step_after n e).
Proof.
move=> mn; case: e => [j v|x|x|x] /=.
- case: (sameP j i) => [->|ji] ok; last first.
    by split=> // x; rewrite !inE mn; case: eqP => // e; case: ji; apply: (others (esym e)).
  move: ok; rewrite readsE /= andbT -!mn => /andP[-> ->]; split=> // x.
  by rewrite !inE writesE (inj_eq inj) mn.
- case: (view_case x) => [[y -> ->]|[no ->]] /=; rewrite ?partial -?mn => ok; split=> // z.
    by case: ifP => _; rewrite ?inE ?(inj_eq inj) mn.
  by case: ifP => _; rewrite ?inE ?no mn.
- case: (view_case x) => [[y -> ->]|[no ->]] /= _; split=> // z; first by rewrite !inE (inj_eq inj) mn.
  by rewrite !inE (negbTE (no z)) mn.
case: (view_case x) => [[y -> ->]|[no ->]] /=; rewrite ?partial => ok; split=> // z.
  by rewrite !inE (inj_eq inj) mn.
by rewrite !inE no mn.
Qed.

Let parts_ok m n s : agree m n -> step_legal n s ->
  legal o a b m (pmap part s) /\ agree (run o m (pmap part s)) (step_run n s).
Proof.
elim: s m n => [|e s IH] m n //= mn /andP[/(part_ok mn)].
by case: (part e) => [f|] /= [ok mn']; move/(IH _ _ mn') => [l r]; rewrite ?ok.
Qed.

Let words_of (f : word A' B' C' -> pred (event M A' B' C')) (g : step_word -> pred step_event) x s :
  (forall e, (if part e is Some e' then f x e' else false) = g (word_of x) e) ->
  count (f x) (pmap part s) = count (g (word_of x)) s.
Proof. by move=> fg; rewrite count_pmap; apply: eq_count. Qed.

Let same_word x y : (if view y is Some z then z == x else false) = (y == word_of x).
Proof.
case: (view_case y) => [[z -> ->]|[no ->]]; first by rewrite (inj_eq inj).
by rewrite eq_sym (negbTE (no x)).
Qed.

Lemma pass_execution (P : finType) (cap : nat) (e : step P cap) :
  exists f : execution o a b (work i) P #|[finType of word A' B' C']| cap,
    [/\ received_out f = \sum_x taken e (word_of (Execution.Out _ _ x)),
        received_inp f = \sum_x taken e (word_of (Execution.In _ _ x)) &
        received_ker f = \sum_x taken e (word_of (Execution.Ker _ _ x))].
Proof.
have begin p : agree (start (fun x => step_owner e (word_of x)) p) (step_start (step_owner e) p).
  by move=> x; rewrite !inE partial.
have took x s : count (receives x) (pmap part s) = count (takes (word_of x)) s.
  by apply: words_of => -[j v|y|y|y] //=; [case: ifP|case: (view y)|rewrite -same_word; case: (view y)|case: (view y)].
have gave x s : count (sends x) (pmap part s) = count (gives (word_of x)) s.
  by apply: words_of => -[j v|y|y|y] //=; [case: ifP|rewrite -same_word; case: (view y)|case: (view y)|case: (view y)].
unshelve eexists; first apply: (@Execution _ _ _ _ o a b (work i) P _ cap
  (fun p => pmap part (step_events e p)) (fun x => step_owner e (word_of x))).
- move=> v; rewrite -(each_once e i v); apply: eq_bigr => p _; rewrite count_pmap; apply: eq_count.
  by move=> [j u|y|y|y] //=; [case: ifP|case: (view y)|case: (view y)|case: (view y)].
- move=> p; apply: leq_trans (each_capped e i p); apply: eq_leq; rewrite count_pmap; apply: eq_count.
  by move=> [j u|y|y|y] //=; [case: ifP|case: (view y)|case: (view y)|case: (view y)].
- by move=> p; case: (parts_ok (begin p) (each_lawful e p)).
- by move=> p k; apply: max_card.
- move=> p x; case: (parts_ok (begin p) (each_lawful e p)) => _ ->.
  have := partial (Execution.Out _ _ x); case: (word_of _) => [//|y] _; exact: each_finish.
- by move=> x; rewrite (eq_bigr _ (fun p _ => gave x _)) (eq_bigr _ (fun p _ => took x _)) each_delivered.
by split; apply: eq_bigr => x _; apply: eq_bigr => p _; rewrite /= took.
Qed.
End Pass.

Variables (P : finType) (cap : nat) (e : step P cap).

(* What `pass_execution` asks of `word_of`, by cases of words. *)
Local Ltac by_words := solve
  [ by move=> [[x|x]|x] [[y|y]|y] // [->] | by move=> [[x|x]|x] | by move=> [] v [[x|x]|x] ].

Lemma forward_pass : exists f : execution out inp ker (work Forward) P #|[finType of word A B C]| cap,
  [/\ received_out f = took_out e, received_inp f = took_inp e & received_ker f = took_ker e].
Proof.
pose word_of (x : word A B C) := if x is inl (inl _) then Sum x else Value x.
apply: (@pass_execution _ _ _ out inp ker Forward word_of _ _ _ _ _ _ _ e) => //.
all: by_words.
Qed.

Lemma data_pass : exists f : execution inp out ker (work Data) P #|[finType of word B A C]| cap,
  [/\ received_out f = took_dinp e, received_inp f = took_dout e & received_ker f = took_ker e].
Proof.
pose word_of (x : word B A C) := match x with
  | inl (inl y) => Sum (In y) | inl (inr y) => Value (Out y) | inr y => Value (Ker y) end.
apply: (@pass_execution _ _ _ inp out ker Data word_of _ _ _ _ _ _ _ e) => //.
all: by_words.
Qed.

Lemma weight_pass : exists f : execution ker out inp (work Weight) P #|[finType of word C A B]| cap,
  [/\ received_out f = took_dker e, received_inp f = took_dout e & received_ker f = took_inp e].
Proof.
pose word_of (x : word C A B) := match x with
  | inl (inl y) => Sum (Ker y) | inl (inr y) => Value (Out y) | inr y => Value (In y) end.
apply: (@pass_execution _ _ _ ker out inp Weight word_of _ _ _ _ _ _ _ e) => //.
all: by_words.
Qed.
End Step.

(** * The bound of a step *)

Section Bound.
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.
Local Notation Madd := (Madd N n Sample Group Filter Channel).
Local Notation out := (@out _ N n Sample Group Filter Channel).
Local Notation inp := (@inp _ N n sigma delta delta_pos Sample Group Filter Channel).
Local Notation ker := (@ker _ N n Sample Group Filter Channel).
Variable work : pass -> {set Madd}.
Variables (top bottom : nat -> nat -> nat).
Hypothesis constants : forall o k, bounded (conv o k) (top o k) (bottom o k).
Hypothesis bottom_pos : forall o k, 0 < bottom o k.
Variables (w : Class sigma -> nat) (Q : nat).
Hypothesis weights : forall rho, w rho ^ 3 * numerator N n delta top rho <= Q * denominator N n delta bottom rho.
Variables (P : finType) (cap size q : nat) (e : step out inp ker work P cap).
Hypotheses (sizes : forall i g, #|slice (@group _ N n _ _ _ _) (work i) g| <= size) (le : minn cap size <= q).
Local Notation volume := (fun i => volume sigma_pos delta_pos (work i) w Q q).

(* Inequality (2) of every pass. The passes share what they gather: dOut, In and Ker. *)
Theorem training_bound :
  [/\ volume Forward (took_out e) (took_inp e) (took_ker e),
      volume Data (took_dout e) (took_dinp e) (took_ker e),
      volume Weight (took_dout e) (took_inp e) (took_dker e) &
      (took_out e + took_dout e) + (took_inp e + took_dinp e) + (took_ker e + took_dker e) <= #|P| * step_most e].
Proof.
split; last exact: step_average.
- have [f [<- <- <-]] := forward_pass e; exact: (forward_each _ constants bottom_pos weights (sizes _) le).
- have [f [<- <- <-]] := data_pass e; exact: (backward_data_each _ constants bottom_pos weights (sizes _) le).
have [f [<- <- <-]] := weight_pass e; exact: (backward_weight_each _ constants bottom_pos weights (sizes _) le).
Qed.
End Bound.

(* One pass receives at least half of what it reads, as another one reads it, too, and all that it writes. *)
Lemma three_passes V k o i j o' i' j' S : V <= k * (o' * i * j) -> V <= k * (o * i' * j) -> V <= k * (o * i * j') ->
  o + o' + (i + i') + (j + j') <= S -> 27 * (27 * V) <= 4 * (k * S ^ 3).
Proof.
move=> f d w sum.
have one x y z : V <= k * (x * y * z) -> 27 * (2 * V) <= k * (2 * x + y + z) ^ 3.
  move=> v; apply: no_floor; apply: leq_trans (leq_mul (leqnn 2) v) _; apply: eq_leq; clear; lia.
have {}f := one _ _ _ f.
have {}d : 27 * (2 * V) <= k * (2 * i' + o + j) ^ 3 by apply: one; rewrite [i' * o]mulnC.
have {}w : 27 * (2 * V) <= k * (2 * j' + o + i) ^ 3.
  by apply: one; rewrite [j' * o * i](_ : _ = o * i * j') //; clear; lia.
have least T : 3 * T <= 2 * S -> 27 * (2 * V) <= k * T ^ 3 -> 27 * (27 * V) <= 4 * (k * S ^ 3).
  move=> TS v; have : k * (3 * T) ^ 3 <= k * (2 * S) ^ 3 by rewrite leq_mul2l leq_exp2r // TS orbT.
  rewrite !expnMn; move: (T ^ 3) (S ^ 3) v => X Y; have -> : 3 ^ 3 = 27 by []; have -> : 2 ^ 3 = 8 by [].
  by clear; lia.
have {sum} : (2 * o' + i + j) + (2 * i' + o + j) + (2 * j' + o + i) <= 2 * S by move: sum; clear; lia.
move: f d w; move: (2 * o' + i + j) (2 * i' + o + j) (2 * j' + o + i) => s t u f d w stu.
case: (leqP (3 * s) (2 * S)) => [le|st]; first exact: least f.
case: (leqP (3 * t) (2 * S)) => [le|ts]; first exact: least d.
by apply: (least u) => //; move: st ts stu; clear; lia.
Qed.

Section Training.
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.
Variable work : {set Madd N n Sample Group Filter Channel}.
Variables (P : finType) (cap : nat).
Variable e : step (@out _ N n _ _ _ _) (@inp _ N n sigma delta delta_pos _ _ _ _) (@ker _ N n _ _ _ _)
  (fun=> work) P cap.

(* A step of three passes with F multiply-adds each, with one constant m: received words are at least
   9 (V/4)^(1/3) - 2 (|Out| + |In| + |Ker|) / P with V = F^3 / (m cap P^3). *)
Theorem training_step : (9 * #|work|) ^ 3 <= 4 * ((\prod_d minn (N d) (n d)) * cap *
  (#|P| * step_most e + 2 * words sigma delta_pos work) ^ 3).
Proof.
set m := \prod_d _.
have weights (rho : Class sigma) : 1 ^ 3 * numerator N n delta minn rho <= m * denominator N n delta (fun _ _ => 1) rho.
  by rewrite mul1n /denominator big1 // muln1 simple_le.
have sizes (i : pass) g : #|slice (@group _ N n _ _ _ _) work g| <= #|work|.
  by apply/subset_leq_card/subsetP => v /sliceP[].
have [] := training_bound (w := fun=> 1) sigma_pos conv_min (fun _ _ => isT) weights e sizes (geq_minl _ _).
rewrite /volume sum1_card /words => f d w sum.
rewrite expnMn (_ : 9 ^ 3 = 27 * 27) // -mulnA; apply: three_passes f d w _; move: sum; clear; lia.
Qed.
End Training.
