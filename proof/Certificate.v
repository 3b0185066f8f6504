(* A checker of certificates of lower bounds, as `synth plan --certify` writes them, and the
   theorem that what it accepts is true. The checker counts the layer by itself and computes with binary numbers. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia NArith.
From Synth Require Import Inequalities Forms Constants Geometry Execution Segments Schedule Convolution Bound Layer Binary.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.
Local Notation t := N.to_nat.

(** * What a certificate is about: a layer, processes, their memory and their work *)

(* A spatial axis: the rows of In, the taps, stride and dilation, rows of zeros before and after. *)
Record axis := Axis { rows : N; kernel : N; stride : positive; dilation : positive; before : N; after : N }.
(* Channels and filters are those of one group. A matrix product has no axes. *)
Record layer := Layer { batch : N; groups : N; filters : N; channels : N; axes : seq axis }.
(* Without a memory limit, `memory` is None. No process performs more than most_work multiply-adds. *)
Record problem := Problem { its_layer : layer; procs : N; memory : option N; most_work : N }.

(* The outputs along an axis, as torch counts them. *)
Definition span a : N := (N.pos (dilation a) * (kernel a - 1) + 1)%num.
Definition padded a : N := (before a + rows a + after a)%num.
Definition positions a : N :=
  if (span a <=? padded a)%num then ((padded a - span a) / N.pos (stride a) + 1)%num else 0%num.

Section Meaning.
Variable l : layer.
Definition axis_of (d : 'I_(size (axes l))) := tnth (in_tuple (axes l)) d.
Definition outputs_of d := t (positions (axis_of d)).
Definition taps_of d := t (kernel (axis_of d)).
Definition stride_of d := t (N.pos (stride (axis_of d))).
Definition dilation_of d := t (N.pos (dilation (axis_of d))).
Definition before_of d := t (before (axis_of d)).
Definition rows_of d := t (rows (axis_of d)).
Lemma stride_pos d : 0 < stride_of d. Proof. exact: posN. Qed.
Lemma dilation_pos d : 0 < dilation_of d. Proof. exact: posN. Qed.

Definition Madd_of := Madd outputs_of taps_of [finType of 'I_(t (batch l))] [finType of 'I_(t (groups l))]
  [finType of 'I_(t (filters l))] [finType of 'I_(t (channels l))].
Definition work_of : {set Madd_of} :=
  @layer_work _ outputs_of taps_of stride_of dilation_of before_of rows_of _ _ _ _.
Definition out_of : Madd_of -> _ := @out _ _ _ _ _ _ _.
Definition inp_of : Madd_of -> _ := @inp _ _ _ stride_of _ dilation_pos _ _ _ _.
Definition ker_of : Madd_of -> _ := @ker _ _ _ _ _ _ _.

(* The executions of the layer on the processes P with `mem` words each, of which none does more than `cap`: the
   passes write Out, In, or Ker, and read the other two tensors. *)
Definition forward := execution out_of inp_of ker_of work_of.
Definition backward_data := execution inp_of out_of ker_of work_of.
Definition backward_weight := execution ker_of out_of inp_of work_of.
End Meaning.

(** * The numbers of a certificate, and the checker *)

Record fraction := Fraction { num : N; den : positive }.
(* C(outputs, taps)^2 <= square, and weight <= C^(-2/3). *)
Record ceiling := Ceiling { of_outputs : N; of_taps : N; square : fraction; weight : fraction }.
Record certificate := Certificate {
  size_out : N; size_inp : N; size_ker : N; multiply_adds : N;
  constants : seq ceiling; segments : positive;
  x_out : fraction; x_inp : fraction; x_ker : fraction; nu : fraction;
  mu_out : fraction; mu_inp : fraction; mu_ker : fraction;
  claimed : fraction }.

Section Checker.
Local Open Scope N_scope.

(* Counting along one axis. *)
Definition real_row a row := (before a <=? row) && (row <? before a + rows a).
Definition meets a x r := oneN (real_row a (N.pos (stride a) * x + N.pos (dilation a) * r)).
Definition pairs_of a := sumN (kernel a) (fun r => sumN (positions a) (fun x => meets a x r)).
Definition reads a row r := (N.pos (dilation a) * r <=? row)
  && ((row - N.pos (dilation a) * r) mod N.pos (stride a) =? 0)
  && ((row - N.pos (dilation a) * r) / N.pos (stride a) <? positions a).
Definition read_rows a := sumN (N.pos (stride a) * positions a + N.pos (dilation a) * kernel a)
  (fun row => oneN (real_row a row && (0 <? sumN (kernel a) (fun r => oneN (reads a row r))))).

(* The shape of a residue class: outputs that can share a row, and taps. *)
Definition residue a r := (N.pos (dilation a) * r) mod N.pos (stride a).
Definition share a :=
  let s := N.pos (dilation a) / N.gcd (N.pos (stride a)) (N.pos (dilation a)) in (positions a + (s - 1)) / s.
Definition class_taps a c := sumN (kernel a) (fun r => oneN (residue a r =? c)).

(* Weights over the common denominator `unit`. A class without a constant has the weight 0. *)
Definition common cs := prodN (fun c => N.pos (den (weight c))) cs.
Definition numerator (u : N) (f : fraction) := num f * (u / N.pos (den f)).
Fixpoint weight_of cs u o k := if cs is c :: cs'
  then if (of_outputs c =? o) && (of_taps c =? k) then numerator u (weight c) else weight_of cs' u o k else 0.
(* C(o, k)^2 as the certificate has it, min(o, k) where it has none. *)
Fixpoint square_of cs o k := if cs is c :: cs'
  then if (of_outputs c =? o) && (of_taps c =? k) then square c else square_of cs' o k else Fraction (N.min o k) 1.
Definition small cs u :=
  all (fun c => numerator u (weight c) ^ 3 * num (square c) <=? u ^ 3 * N.pos (den (square c))) cs.
(* The squares are proved, each by a list of directions; none is needed for min(o, k). *)
Fixpoint squares_proved cs (ws : seq (seq direction)) := if cs is c :: cs'
  then proved (of_outputs c) (of_taps c) (num (square c)) (den (square c)) (head [::] ws)
    && squares_proved cs' (behead ws) else true.
Definition class_weight cs u a c := weight_of cs u (share a) (class_taps a c).
Definition mass_of cs u a :=
  sumN (kernel a) (fun r => class_weight cs u a (residue a r) * sumN (positions a) (fun x => meets a x r)).

Definition words_out l := batch l * groups l * filters l * prodN positions (axes l).
Definition words_inp l := batch l * groups l * channels l * prodN read_rows (axes l).
Definition words_ker l := groups l * filters l * channels l * prodN kernel (axes l).
Definition group_work l := batch l * filters l * channels l * prodN pairs_of (axes l).

(* What a certificate states beside the proof: its counts, squares and multipliers are right. *)
Definition stated p c := let l := its_layer p in
  [&& size_out c =? words_out l, size_inp c =? words_inp l, size_ker c =? words_ker l,
      multiply_adds c =? groups l * group_work l, multiply_adds c <=? procs p * most_work p,
      all (fun k => num (weight k) ^ 3 * num (square k) <=? N.pos (den (weight k)) ^ 3 * N.pos (den (square k)))
        (constants c) &
      all (fun xm => num (nu c) * N.pos (den xm.1) * N.pos (den xm.2) + num xm.2 * N.pos (den (nu c)) * num xm.1
          =? num xm.1 * N.pos (den (nu c)) * N.pos (den xm.2))
        [:: (x_out c, mu_out c); (x_inp c, mu_inp c); (x_ker c, mu_ker c)]].

(* The chain of the proof, over common denominators: `u` of the weights, `e` of x and nu. *)
Definition volume_of l cs u :=
  (batch l * groups l * filters l * channels l * prodN (mass_of cs u) (axes l)) ^ 3.
Definition piece p c :=
  N.min ((most_work p + (N.pos (segments c) - 1)) / N.pos (segments c)) (group_work (its_layer p)).
Definition chain p c := let l := its_layer p in let u := common (constants c) in
  let k := prodN (fun=> u ^ 3) (axes l) * piece p c in
  let e := N.pos (den (x_out c)) * N.pos (den (x_inp c)) * N.pos (den (x_ker c)) * N.pos (den (nu c)) in
  let x := numerator e (x_out c) in let y := numerator e (x_inp c) in
  let z := numerator e (x_ker c) in let v := numerator e (nu c) in
  let carried := (N.pos (segments c) - 1) * (if memory p is Some m then m else 0) in
  let d := N.pos (den (claimed c)) in
  [&& 0 <? k, small (constants c) u, 0 <? x, 0 <? y, 0 <? z, v <=? x, v <=? y, v <=? z,
      x * y * z * k <=? volume_of l (constants c) u * e ^ 3 &
      procs p * (num (claimed c) + carried * d) * (e * (x * y * z))
        + d * (v * (e * (words_out l * (y * z) + words_inp l * (x * z) + words_ker l * (x * y))))
      <=? d * (3 * (v * (x * y * z)))].

Definition follows p c := [&& stated p c, 0 <? procs p,
  (if memory p is None then N.pos (segments c) =? 1 else true) & (num (claimed c) =? 0) || chain p c].
Definition check p c ws := squares_proved (constants c) ws && follows p c.
End Checker.

(** * What the checker accepts is true *)

Section Counting.
Variable l : layer.
Local Notation D := (size (axes l)).
Implicit Types d : 'I_D.
Local Notation N := (@outputs_of l).
Local Notation n := (@taps_of l).
Local Notation sigma := (@stride_of l).
Local Notation delta := (@dilation_of l).
Local Notation real := (@real D (@before_of l) (@rows_of l)).

Lemma product_axes (f : axis -> BinNums.N) : t (prodN f (axes l)) = \prod_(d < D) t (f (axis_of d)).
Proof. by rewrite prodNE big_tnth. Qed.

Lemma real_rowE d row : real_row (axis_of d) row = real d (t row).
Proof. by rewrite /real_row !toN. Qed.

Lemma meetsE d x r : t (meets (axis_of d) x r) = real d (sigma d * t x + delta d * t r).
Proof. by rewrite /meets oneNE real_rowE !toN. Qed.

Lemma pairsE d : t (pairs_of (axis_of d)) = pairs N n sigma delta (@before_of l) (@rows_of l) d.
Proof.
rewrite /pairs exchange_big /pairs_of.
apply: (@sumNE _ _ (fun r => \sum_(x < N d) (real d (sigma d * x + delta d * r) : nat))) => r.
by rewrite (@sumNE _ _ (fun x => real d (sigma d * x + delta d * t r : nat))) // => x; apply: meetsE.
Qed.

Lemma read_rows_le d :
  \sum_(row < sigma d * N d + delta d * n d) (is_read N n sigma delta (@before_of l) (@rows_of l) d row : nat)
  <= t (read_rows (axis_of d)).
Proof.
have -> : sigma d * N d + delta d * n d =
    t (N.pos (stride (axis_of d)) * positions (axis_of d) + N.pos (dilation (axis_of d)) * kernel (axis_of d))%num.
  by rewrite addN !mulN.
apply: (@sumN_le _ _ (fun row => is_read N n sigma delta (@before_of l) (@rows_of l) d row)) => row.
rewrite /is_read oneNE real_rowE; case: (real d (t row)) => //=; case: existsP => // -[x].
case/existsP => r /eqP e; rewrite ltN sumN_nat (bigD1 r) //= oneNE.
suff -> : reads (axis_of d) row (N.of_nat r) by [].
rewrite /reads !toN modN divN subN mulN Nat2N.id e -/(stride_of d) -/(dilation_of d) leq_addl addnK.
by rewrite modnMr eqxx mulKn ?stride_pos // ltn_ord.
Qed.

Lemma shareE d : t (share (axis_of d)) = outputs N sigma delta d.
Proof. by rewrite /share divN addN subN divN gcdN /outputs /step subn1. Qed.

Lemma residueE d r : t (residue (axis_of d) r) = delta d * t r %% sigma d.
Proof. by rewrite /residue modN mulN. Qed.

Lemma class_tapsE d (rho : Class sigma) :
  t (class_taps (axis_of d) (N.of_nat (rho d))) = taps n delta rho d.
Proof.
rewrite tapsE /class_taps; apply: (@sumNE _ _ (fun r => (delta d * r %% sigma d == rho d : nat))) => r.
by rewrite oneNE eqN residueE Nat2N.id.
Qed.

Variables (cs : seq ceiling) (u : BinNums.N).
Definition axis_weight d c := t (class_weight cs u (axis_of d) (N.of_nat c)).
Definition weights_of (rho : Class sigma) := \prod_d axis_weight d (rho d).

Lemma massE d : t (mass_of cs u (axis_of d)) =
  \sum_(x < N d) \sum_(r < n d) real d (sigma d * x + delta d * r) * axis_weight d (delta d * r %% sigma d).
Proof.
rewrite exchange_big /mass_of /=; apply: (@sumNE _ _ (fun r => \sum_(x < N d)
  real d (sigma d * x + delta d * r) * axis_weight d (delta d * r %% sigma d))) => r.
rewrite mulN (@sumNE _ _ (fun x => real d (sigma d * x + delta d * t r))) => [|x]; last exact: meetsE.
by rewrite big_distrr; apply: eq_bigr => x _; rewrite /axis_weight -residueE N2Nat.id [LHS]mulnC.
Qed.

Lemma weight_of_small o k : small cs u ->
  t (weight_of cs u o k) ^ 3 * t (num (square_of cs o k)) <= t u ^ 3 * t (N.pos (den (square_of cs o k))).
Proof.
elim: cs => [|c s IH]; first by rewrite exp0n.
have -> : small (c :: s) u = (numerator u (weight c) ^ 3 * num (square c) <=? u ^ 3 * N.pos (den (square c)))%num
  && small s u by [].
by case/andP; rewrite leN !mulN !cubeN => ok /IH rest; rewrite [weight_of _ _ _ _]/= [square_of _ _ _]/=; case: ifP.
Qed.

(* The constants of the theorems. *)
Definition top o k := t (num (square_of cs (N.of_nat o) (N.of_nat k))).
Definition bottom o k := t (N.pos (den (square_of cs (N.of_nat o) (N.of_nat k)))).

Lemma squares_bounded ws o k : squares_proved cs ws -> bounded (conv o k) (top o k) (bottom o k).
Proof.
rewrite /top /bottom; elim: cs ws => [|c s IH] ws /=.
  move=> _; rewrite minN !Nat2N.id; exact: conv_min.
case/andP => /proved_bounded; case: ifP => [/andP[/N.eqb_eq -> /N.eqb_eq ->]|_ _]; last exact: IH.
by rewrite !Nat2N.id.
Qed.

Lemma bottom_pos o k : 0 < bottom o k. Proof. exact: posN. Qed.

Lemma weights_small rho : small cs u ->
  weights_of rho ^ 3 * Convolution.numerator N n delta top rho
  <= t (prodN (fun=> (u ^ 3)%num) (axes l)) * denominator N n delta bottom rho.
Proof.
move=> ok; rewrite product_axes /weights_of /Convolution.numerator /denominator !expnS expn0 muln1 -!big_split /=.
apply: leq_prod => d _; rewrite cubeN.
have := weight_of_small (share (axis_of d)) (class_taps (axis_of d) (N.of_nat (rho d))) ok.
rewrite /top /bottom -shareE -class_tapsE !N2Nat.id /axis_weight /class_weight.
by rewrite !expnS !expn0 !muln1 !mulnA.
Qed.
End Counting.

Lemma claim_follows n number carried d Q floors three most held : 0 < n -> 0 < Q ->
  held <= n * carried -> n * (number + carried * d) * Q + d * floors <= d * three ->
  three <= Q * (n * most + held) + floors -> number <= d * most.
Proof.
move=> n0 Q0 h claim dual; have le : n * (number + carried * d) <= d * (n * most + held).
  rewrite -(leq_pmul2r Q0) -(leq_add2r (d * floors)); apply: leq_trans claim _.
  by rewrite -mulnA -mulnDr leq_mul2l [_ * Q]mulnC dual orbT.
rewrite -(leq_pmul2l n0); move: le.
have := leq_mul (leqnn d) h; rewrite !mulnDr; have -> : n * (carried * d) = d * (n * carried) by lia.
have -> : n * (d * most) = d * (n * most) by lia.
move: (n * number) (d * (n * carried)) (d * (n * most)) (d * held) => *; lia.
Qed.

Section Sound.
Variables (p : problem) (c : certificate) (ws : seq (seq direction)) (P : finType) (mem : nat).
Let l := its_layer p.
Let cuts := t (N.pos (segments c)) - 1.
Let step := t ((most_work p + (N.pos (segments c) - 1)) / N.pos (segments c))%num.
Hypotheses (accepted : check p c ws) (processes : #|P| = t (procs p)).
Hypothesis limit : if memory p is Some m then mem <= t m else true.

Let proved_squares : squares_proved (constants c) ws. Proof. by case/andP: accepted. Qed.

Let constants_bounded o k : bounded (conv o k) (top (constants c) o k) (bottom (constants c) o k).
Proof. exact: squares_bounded proved_squares. Qed.

Let steps : t (most_work p) <= step * cuts.+1.
Proof.
rewrite /step /cuts divN addN subN; have := posN (segments c); move: (t (N.pos _)) (t (most_work p)) => n m n0.
have -> : (n - 1).+1 = n by lia.
have := ltn_ceil (m + (n - t 1%num)) n0; have -> : t 1%num = 1 by []; move: (_ %/ n) => s; lia.
Qed.

Let sizes (g : [finType of 'I_(t (groups l))]) :
  #|slice (@group _ _ _ _ _ _ _) (work_of l) g| <= t (group_work l).
Proof.
apply: leq_trans; first exact: card_group.
rewrite !card_ord /group_work !mulN product_axes leq_mul2l; apply/orP; right.
by apply: eq_leq; apply: eq_bigr => a _; rewrite pairsE.
Qed.

Let le : minn step (t (group_work l)) <= t (piece p c). Proof. by rewrite /piece minN. Qed.

(* What follows from inequality (2) for a number of words that a process receives. *)
Lemma claim_holds (received : nat) :
  (small (constants c) (common (constants c)) ->
   bound (@stride_pos l) (@dilation_pos l) (work_of l) (weights_of (constants c) (common (constants c)))
     (t (prodN (fun=> (common (constants c) ^ 3)%num) (axes l))) (t (piece p c))
     (#|P| * received + #|P| * cuts * mem + Bound.words (@stride_of l) (@dilation_pos l) (work_of l))) ->
  t (num (claimed c)) <= t (N.pos (den (claimed c))) * received.
Proof.
move=> holds; have cardP := processes; case/andP: accepted => _; case/and4P => _; rewrite ltN => P0 one.
case/orP => [|ok]; first by rewrite eqN => /eqP ->.
move: ok holds; rewrite /chain -/l; set cs := constants c; set u := common cs.
set k := N.mul (prodN _ _) _; set E := N.mul (N.mul (N.mul _ _) _) _.
set x := numerator _ _; set y := numerator _ _; set z := numerator _ _; set v := numerator _ _.
set carried := N.mul (N.sub _ _) (if _ is Some _ then _ else _); set d := N.pos (den (claimed c)).
rewrite !ltN !leN; case/and5P => k0 small_cs x0 y0 /and5P[z0 vx vy vz /andP[vol claim]] holds.
have [X [Y [Z [[oX iY kZ] [cube sum]]]]] := holds small_cs.
have volume : t (volume_of l cs u) <= t k * (X * Y * Z).
  rewrite {1}/k mulN; apply: leq_trans cube; rewrite sum_weights !card_ord /volume_of cubeN !mulN product_axes.
  rewrite leq_exp2r // leq_mul2l; apply/orP; right; apply: eq_leq; apply: eq_bigr => a _; exact: massE.
have oo : #|touched (@out_of l) (work_of l)| <= t (words_out l).
  by apply: leq_trans (out_words _) _; rewrite !card_ord /words_out !mulN product_axes.
have kk : #|touched (@ker_of l) (work_of l)| <= t (words_ker l).
  by apply: leq_trans (ker_words _) _; rewrite !card_ord /words_ker !mulN product_axes.
have ii : #|touched (@inp_of l) (work_of l)| <= t (words_inp l).
  apply: leq_trans; first exact: inp_words.
  rewrite !card_ord /words_inp !mulN product_axes leq_mul2l; apply/orP; right.
  by apply: leq_prod => a _; apply: read_rows_le.
have E0 : 0 < t E by rewrite /E !mulN !muln_gt0 !posN.
clearbody x y z v E k.
have {}vol : t x * t y * t z * t k <= t (volume_of l cs u) * t E ^ 3 by move: vol; rewrite !mulN cubeN.
have dual := duality k0 x0 y0 z0 vx vy vz vol volume oX iY kZ oo ii kk sum.
have held : #|P| * cuts * mem <= #|P| * t carried.
  rewrite -mulnA leq_mul2l; apply/orP; right; rewrite /cuts /carried mulN subN; move: one limit.
  by case: (memory p) => [m _|]; [rewrite leq_mul2l orbC => ->|rewrite eqN => /eqP ->].
have EQ0 : 0 < t E * (t x * t y * t z) by rewrite !muln_gt0 E0 x0 y0 z0.
have P1 : 0 < #|P| by rewrite cardP.
clearbody carried; move: dual claim.
move: (words_out l) (words_inp l) (words_ker l) => o i w dual; rewrite !(mulN, addN) -/d -cardP => claim.
by apply: (claim_follows P1 EQ0 held claim dual).
Qed.

(* The theorem of a certificate: whatever the checker accepts is true. In every execution of a pass on that many
   processes with that much memory, some process receives at least the claimed words. *)
Theorem certified_forward (e : forward l P mem (t (most_work p))) :
  t (num (claimed c)) <= t (N.pos (den (claimed c))) * most_received e.
Proof.
apply: claim_holds => ok.
exact: (forward_bound (@stride_pos l) (@constants_bounded) (bottom_pos (constants c))
  (fun rho => weights_small rho ok) steps sizes le e).
Qed.

Theorem certified_backward_data (e : backward_data l P mem (t (most_work p))) :
  t (num (claimed c)) <= t (N.pos (den (claimed c))) * most_received e.
Proof.
apply: claim_holds => ok.
exact: (backward_data_bound (@stride_pos l) (@constants_bounded) (bottom_pos (constants c))
  (fun rho => weights_small rho ok) steps sizes le e).
Qed.

Theorem certified_backward_weight (e : backward_weight l P mem (t (most_work p))) :
  t (num (claimed c)) <= t (N.pos (den (claimed c))) * most_received e.
Proof.
apply: claim_holds => ok.
exact: (backward_weight_bound (@stride_pos l) (@constants_bounded) (bottom_pos (constants c))
  (fun rho => weights_small rho ok) steps sizes le e).
Qed.
End Sound.
