(* From an execution to segments (docs/bounds.md, "From accessed to received"): a word of In or Ker that a segment
   accesses was in memory when the segment began, or was received during it. A word of Out that it updates is in
   memory at its end, or was sent during it, and some process receives each word that is sent. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Geometry Execution Segments.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Lists.
Variable T : Type.
Implicit Types (s : seq T) (f : pred T).

Lemma take_more a b s : a <= b -> take b s = take a s ++ drop a (take b s).
Proof. by move=> ab; rewrite -{1}(cat_take_drop a (take b s)) take_take. Qed.

Lemma between a i b s : a <= i -> i <= b -> drop a (take b s) = drop a (take i s) ++ drop i (take b s).
Proof.
elim: s a i b => [|x s IH] a i b; first by [].
case: b => [|b]; first by rewrite leqn0 => ai /eqP i0; move: ai; rewrite i0 leqn0 => /eqP ->.
case: i => [|i]; first by rewrite leqn0 => /eqP ->.
case: a => [|a] ai ib; last exact: IH.
by rewrite !drop0; apply: (@take_more i.+1 b.+1 (x :: s)).
Qed.

Lemma count_take_le f a b s : a <= b -> count f (take a s) <= count f (take b s).
Proof. by move=> ab; rewrite (take_more _ ab) count_cat leq_addr. Qed.

Lemma has_count_le f s : (has f s : nat) <= count f s.
Proof. by rewrite has_count; case: (count f s). Qed.

Lemma card_has (X : finType) (f : X -> pred T) s : #|[set x | has (f x) s]| <= \sum_x count (f x) s.
Proof.
rewrite -sum1_card big_mkcond; apply: leq_sum => x _; rewrite inE; have := has_count_le (f x) s.
by case: (has (f x) s).
Qed.
End Lists.

Section Memory.
Variables (M A B C : finType) (out : M -> A) (inp : M -> B) (ker : M -> C).
Local Notation event := (event M A B C).
Local Notation word := (word A B C).
Local Notation run := (run out).
Local Notation legal := (legal out inp ker).
Implicit Types (m : {set word}) (s : seq event) (x : word).

Lemma legal_cat m s t : legal m (s ++ t) = legal m s && legal (run m s) t.
Proof. by elim: s m => //= e s IH m; rewrite IH andbA. Qed.

(* An operand in memory was there before, or came. *)
Lemma operand_came m s x : ~~ is_sum x -> x \in run m s -> x \in m \/ has (receives x) s.
Proof.
move=> nx; elim: s m => [|e s IH] m /=; first by left.
move/IH => [|h]; last by right; rewrite h orbT.
case: e => [v|y|y|y] /=; rewrite ?inE.
- by case/orP => [/eqP e|]; [rewrite e in nx|left].
- by case: ifP => _ h; left; move: h; rewrite ?inE // => /andP[].
- by case/orP => [/eqP ->|]; [right; rewrite eqxx|left].
- by case/andP; left.
Qed.

(* A partial sum in memory stays, or is sent. *)
Lemma sum_stays m s x : is_sum x -> legal m s -> x \in m -> x \in run m s \/ has (sends x) s.
Proof.
move=> sx; elim: s m => [|e s IH] m /=; first by left.
case/andP => ok l xm; case: (boolP (x \in after out m e)) => [xa|gone].
  by case: (IH _ l xa) => h; [left|right; rewrite h orbT].
right; apply/orP; left; move: gone ok; case: e {l} => [v|y|y|y] /=; rewrite ?inE ?xm ?orbT //.
  by case: ifP; rewrite ?inE xm // andbT negbK eq_sym.
by rewrite andbT negbK => /eqP <-; rewrite sx.
Qed.

(* The words that are received are those of the three tensors. *)
Lemma by_word s : count (@gets M A B C) s = \sum_x count (receives x) s.
Proof.
elim: s => [|e s IH] /=; first by rewrite big1.
rewrite IH big_split /=; congr (_ + _); case: e => [v|y|y|y] /=; try by rewrite big1.
by rewrite (bigD1 y) //= eqxx big1 // => x /negbTE; rewrite eq_sym => ->.
Qed.

Lemma all_receivedE (P : finType) (work : {set M}) mem cap (e : execution out inp ker work P mem cap) :
  all_received e = received_out e + received_inp e + received_ker e.
Proof.
rewrite /all_received (eq_bigr _ (fun p _ => by_word (events e p))) exchange_big /= big_sumType /= big_sumType /=.
by congr (_ + _ + _).
Qed.

(* The words of the three tensors in a memory. *)
Lemma memory_parts m :
  #|[set x | In _ _ x \in m]| + #|[set x | Ker _ _ x \in m]| + #|[set x | Out _ _ x \in m]| = #|m|.
Proof.
have part (X : finType) (k : X -> word) : #|[set x | k x \in m]| = \sum_x (k x \in m : nat).
  by rewrite -sum1_card big_mkcond; apply: eq_bigr => x _; rewrite inE; case: (_ \in m).
rewrite !part -sum1_card [in RHS]big_mkcond /=.
rewrite (eq_bigr (fun x => (x \in m : nat))) => [|x _]; last by case: (x \in m).
by rewrite !big_sumType /= addnC addnA.
Qed.
End Memory.

Section Cut.
Variables (M A B C : finType) (out : M -> A) (inp : M -> B) (ker : M -> C) (work : {set M}).
Variables (G : finType) (group : M -> G) (P : finType) (mem cap : nat) (e : execution out inp ker work P mem cap).
(* Every process cuts its work, in order of execution, into cuts + 1 segments of at most `step` multiply-adds. *)
Variables (cuts step size_of_group : nat).
Hypotheses (steps : cap <= step * cuts.+1) (groups : forall g, #|slice group work g| <= size_of_group).

Let s p := events e p.
(* The multiply-adds among the first i events; how many events precede segment j; the memory then; its events. *)
Let did p i := count (@works _ _ _ _) (take i (s p)).
Let place p j := if j <= cuts then find (fun i => step * j <= did p i) (iota 0 (size (s p))) else size (s p).
Let memory p j := run out (start (owner e) p) (take (place p j) (s p)).
Let segment p j := drop (place p j) (take (place p j.+1) (s p)).

Let did_le p i i' : i <= i' -> did p i <= did p i'. Proof. exact: count_take_le. Qed.

Let place_size p j : place p j <= size (s p).
Proof. by rewrite /place; case: ifP => // _; rewrite -[X in _ <= X](size_iota 0) find_size. Qed.

Let place_le p j : place p j <= place p j.+1.
Proof.
rewrite {2}/place; case: ifP => [jc|_]; last exact: place_size.
rewrite /place (ltnW jc); apply: sub_find => i; apply: leq_trans; by rewrite leq_mul2l leqnSn orbT.
Qed.

Let place0 p : place p 0 = 0.
Proof. by rewrite /place /=; case: (size (s p)) => //= n; rewrite muln0. Qed.

(* What is used of a memory. *)
Let held p j := memory p j :&: used out inp ker work.

(* Where a multiply-add is performed: the process, the event, the segment. *)
Let who v := odflt (owner e (Out B C (out v))) [pick p | has (computes v) (s p)].
Let event_of v := find (computes v) (s (who v)).
Let part v := did (who v) (event_of v) %/ step.

Let performed v : v \in work -> has (computes v) (s (who v)).
Proof.
move=> vw; rewrite /who; case: pickP => //= no; have := once e v; rewrite vw big1 // => p _.
by apply/eqP; rewrite -leqn0 leqNgt -has_count no.
Qed.

Let event_lt v : v \in work -> event_of v < size (s (who v)). Proof. by move/performed; rewrite has_find. Qed.

Let take_event v : v \in work ->
  take (event_of v).+1 (s (who v)) = rcons (take (event_of v) (s (who v))) (Compute A B C v).
Proof.
move=> vw; rewrite (take_nth (Compute A B C v)) ?event_lt //; congr rcons.
by have := nth_find (Compute A B C v) (performed vw); rewrite -/(event_of v); case: (nth _ _ _) => //= u /eqP ->.
Qed.

Let did_event v : v \in work -> did (who v) (event_of v).+1 = (did (who v) (event_of v)).+1.
Proof. by move=> vw; rewrite /did take_event // -cats1 count_cat /= addn1. Qed.

Let did_cap v : v \in work -> did (who v) (event_of v) < cap.
Proof.
move=> vw; apply: leq_trans (capped e (who v)); rewrite -did_event // -[X in _ <= count _ X]take_size.
by apply: count_take_le; apply: event_lt.
Qed.

Let step_pos v : v \in work -> 0 < step.
Proof. by move/did_cap; case: (step) steps => //; rewrite mul0n leqn0 => /eqP ->. Qed.

Let part_le v : v \in work -> part v < cuts.+1.
Proof. by move=> vw; rewrite ltn_divLR ?(step_pos vw) // mulnC (leq_trans (did_cap vw)). Qed.

Let place_part v : v \in work -> place (who v) (part v) <= event_of v < place (who v) (part v).+1.
Proof.
move=> vw; apply/andP; split.
  have -> : place (who v) (part v) = find (fun i => step * part v <= did (who v) i) (iota 0 (size (s (who v)))).
    by rewrite /place -ltnS part_le.
  rewrite leqNgt; apply/negP => lt.
  have := before_find 0 lt; rewrite nth_iota ?event_lt // add0n => /negP[].
  by rewrite mulnC leq_trunc_div.
rewrite /place; case: ifP => [pc|_]; last exact: event_lt.
set f := fun i => _; case: (boolP (has f (iota 0 (size (s (who v)))))) => [h|/hasNfind ->]; last first.
  by rewrite size_iota event_lt.
have := nth_find 0 h; have := h; rewrite has_find size_iota => lt; rewrite nth_iota // add0n /f => big.
rewrite ltnNge; apply/negP => /(did_le (who v)) small; have := leq_trans big small.
by rewrite mulnC leqNgt ltn_ceil ?(step_pos vw).
Qed.

(* At the event of v its operands are in memory; after it, its sum. *)
Let memory_at v i := run out (start (owner e) (who v)) (take i (s (who v))).

Let operands v : v \in work ->
  In _ _ (inp v) \in memory_at v (event_of v) /\ Ker _ _ (ker v) \in memory_at v (event_of v).
Proof.
move=> vw; have := lawful e (who v); rewrite -(cat_take_drop (event_of v).+1 (events e _)) legal_cat.
by rewrite -/(s (who v)) take_event // -cats1 legal_cat /= => /andP[/andP[_ /andP[/andP[]]]].
Qed.

Let sum_of v : v \in work -> Out _ _ (out v) \in memory_at v (event_of v).+1.
Proof. by move=> vw; rewrite /memory_at take_event // /run foldl_rcons !inE eqxx. Qed.

Let run_more p i i' : i <= i' ->
  run out (start (owner e) p) (take i' (s p)) =
  run out (run out (start (owner e) p) (take i (s p))) (drop i (take i' (s p))).
Proof. by move=> le; rewrite {1}(take_more (s p) le) /run foldl_cat. Qed.

Let reads v x : v \in work -> ~~ is_sum x -> x \in memory_at v (event_of v) ->
  x \in memory (who v) (part v) \/ has (receives x) (segment (who v) (part v)).
Proof.
move=> vw nx; have /andP[le lt] := place_part vw; rewrite /memory_at (run_more _ le) => /(operand_came nx)[|h].
  by left.
by right; rewrite /segment (between _ le (ltnW lt)) has_cat h.
Qed.

Let writes_sum v : v \in work ->
  Out _ _ (out v) \in memory (who v) (part v).+1 \/ has (sends (Out _ _ (out v))) (segment (who v) (part v)).
Proof.
move=> vw; have /andP[le lt] := place_part vw; rewrite /memory (run_more _ lt).
have := lawful e (who v); rewrite -(cat_take_drop (place (who v) (part v).+1) (events e _)) legal_cat => /andP[l _].
have {}l : legal out inp ker (memory_at v (event_of v).+1)
    (drop (event_of v).+1 (take (place (who v) (part v).+1) (s (who v)))).
  by move: l; rewrite -/(s _) {1}(take_more _ lt) legal_cat => /andP[_ ->].
case: (sum_stays _ l (sum_of vw)) => // [|h]; first by left.
by right; rewrite /segment (between _ (leqW le) lt) has_cat h orbT.
Qed.

Let does v := (who v, inord (part v) : 'I_cuts.+1).

Let doesE v p (j : 'I_cuts.+1) : v \in slice does work (p, j) -> [/\ v \in work, who v = p & part v = j].
Proof. by case/sliceP => vw [<- <-]; rewrite inordK ?part_le. Qed.

Let few p g : #|slice group (slice does work p) g| <= minn step size_of_group.
Proof.
rewrite leq_min; apply/andP; split; last first.
  by apply: leq_trans (groups g); apply/subset_leq_card/subsetP => v /sliceP[/sliceP[vw _] vg]; apply/sliceP.
apply: (@leq_trans #|slice does work p|); first by apply/subset_leq_card/subsetP => v /sliceP[].
case: (posnP #|slice does work p|) => [->//|/card_gt0P[v0]]; case: p => p j /doesE[/step_pos].
case E : step => [//|n] _ _ _; rewrite -[X in _ <= X]card_ord -E.
have lt v : did p (event_of v) %% step < step by rewrite ltn_mod E.
rewrite -(card_in_imset (f := fun v => Ordinal (lt v)) (D := slice does work (p, j))) ?max_card // => u v.
move=> /doesE[uw up uj] /doesE[vw vp vj] [] /= same.
have parts : did p (event_of u) %/ step = did p (event_of v) %/ step by move: uj; rewrite -vj /part up vp.
have {parts} same : did p (event_of u) = did p (event_of v).
  by rewrite (divn_eq (did p (event_of u)) step) (divn_eq (did p (event_of v)) step) parts same.
have du := did_event uw; have dv := did_event vw; rewrite up in du; rewrite vp in dv.
have {du dv} same : event_of u = event_of v.
  case: (ltngtP (event_of u) (event_of v)) => // /(did_le p); [rewrite du -same|rewrite dv same]; by rewrite ltnn.
have := nth_find (Compute A B C v) (performed vw); have := nth_find (Compute A B C v) (performed uw).
rewrite -!/(event_of _) up vp same; by case: (nth _ _ _) => //= w /eqP <- /eqP <-.
Qed.

Let segments_count f p : \sum_(j < cuts.+1) count f (segment p j) <= count f (s p).
Proof.
have -> : count f (s p) = count f (take (place p cuts.+1) (s p)) by rewrite /place ltnn take_size.
elim: cuts.+1 => [|n IH]; first by rewrite big_ord0.
by rewrite big_ord_recr /= (take_more _ (place_le p n)) count_cat leq_add2r.
Qed.

Lemma cut : exists c : schedule out inp ker work group P cuts mem (minn step size_of_group),
  [/\ \sum_p \sum_(j < cuts.+1) #|sent c p j| <= received_out e,
      \sum_p \sum_(j < cuts.+1) #|got_b c p j| <= received_inp e &
      \sum_p \sum_(j < cuts.+1) #|got_c c p j| <= received_ker e].
Proof.
unshelve eexists.
  apply: (@Schedule _ _ _ _ out inp ker work _ group P cuts mem (minn step size_of_group) does
    (fun p j => [set x | Out _ _ x \in held p j]) (fun p j => [set x | In _ _ x \in held p j])
    (fun p j => [set x | Ker _ _ x \in held p j])
    (fun p j => [set x | has (sends (Out _ _ x)) (segment p j)])
    (fun p j => [set x | has (receives (In _ _ x)) (segment p j)])
    (fun p j => [set x | has (receives (Ker _ _ x)) (segment p j)])
    (fun x => owner e (Out _ _ x)) (fun x => owner e (In _ _ x)) (fun x => owner e (Ker _ _ x))).
  - exact: few.
  - move=> p j; apply/subsetP => _ /imsetP[v /doesE[vw <- <-] ->]; apply/setUP; rewrite 2!in_set.
    have [there _] := operands vw; have := @reads v _ vw _ there => /(_ isT)[] h; last by right.
    by left; apply/setIP; split=> //; apply: used_inp.
  - move=> p j; apply/subsetP => _ /imsetP[v /doesE[vw <- <-] ->]; apply/setUP; rewrite 2!in_set.
    have [_ there] := operands vw; have := @reads v _ vw _ there => /(_ isT)[] h; last by right.
    by left; apply/setIP; split=> //; apply: used_ker.
  - move=> p j; apply/subsetP => _ /imsetP[v /doesE[vw <- <-] ->]; apply/setUP; rewrite 2!in_set.
    have [] := writes_sum vw => h; last by right.
    by left; apply/setIP; split=> //; apply: used_out.
  - by move=> p j _; rewrite memory_parts; apply: fits.
  - by move=> p x; rewrite in_set /held /memory place0 take0 in_setI in_set /= => /andP[/eqP].
  - by move=> p x; rewrite in_set /held /memory place0 take0 in_setI in_set /= => /andP[/eqP].
  - by move=> p x; rewrite in_set /held /memory /place ltnn take_size in_setI => /andP[/finish].
have part_of (X : finType) (f : X -> pred (event M A B C)) :
    \sum_p \sum_(j < cuts.+1) #|[set x | has (f x) (segment p j)]| <= \sum_x \sum_p count (f x) (s p).
  rewrite exchange_big /=; apply: (@leq_trans (\sum_(j < cuts.+1) \sum_p \sum_x count (f x) (segment p j))).
    by apply: leq_sum => j _; apply: leq_sum => p _; apply: card_has.
  rewrite exchange_big [X in _ <= X]exchange_big; apply: leq_sum => p _ /=.
  rewrite exchange_big; apply: leq_sum => x _.
  exact: segments_count.
split; try exact: part_of; apply: leq_trans (part_of _ _) _; apply: eq_leq; apply: eq_bigr => x _; exact: delivered.
Qed.

(* Inequality (2) for what is received. The weights satisfy the geometric inequality, all three words know the group.
   *)
Variables (w : M -> nat) (Q q : nat).
Hypotheses (ag : forall u v, out u = out v -> group u = group v)
  (bg : forall u v, inp u = inp v -> group u = group v).
Hypothesis cg : forall u v, ker u = ker v -> group u = group v.
Hypothesis geometry : forall V : {set M},
  (\sum_(v in V) w v) ^ 3 <= Q * #|V| * (#|touched out V| * #|touched inp V| * #|touched ker V|).
Hypothesis most : minn step size_of_group <= q.
Let touched_words := #|touched out work| + #|touched inp work| + #|touched ker work|.

Theorem executed : enough out inp ker work w Q q (all_received e + #|P| * cuts * mem + touched_words).
Proof.
have [c [sums inps kers]] := cut; apply: enough_le (received_enough ag bg cg geometry c) most _.
rewrite !leq_add2r all_receivedE /moved; under eq_bigr => p _ do rewrite !big_split /=.
by rewrite !big_split /= !leq_add.
Qed.

(* The same for the process that receives most. *)
Theorem executed_most : enough out inp ker work w Q q (#|P| * most_received e + #|P| * cuts * mem + touched_words).
Proof. by apply: enough_le executed (leqnn q) _; rewrite !leq_add2r average. Qed.
End Cut.

(* One segment: each tensor by itself. A process accesses its own words and those that it receives or sends. *)
Section Whole.
Variables (M A B C : finType) (out : M -> A) (inp : M -> B) (ker : M -> C) (work : {set M}).
Variables (G : finType) (group : M -> G) (P : finType) (mem cap : nat) (e : execution out inp ker work P mem cap).
Variables (size_of_group : nat) (w : M -> nat) (Q q : nat).
Hypothesis groups : forall g, #|slice group work g| <= size_of_group.
Hypotheses (ag : forall u v, out u = out v -> group u = group v)
  (bg : forall u v, inp u = inp v -> group u = group v).
Hypothesis cg : forall u v, ker u = ker v -> group u = group v.
Hypothesis geometry : forall V : {set M},
  (\sum_(v in V) w v) ^ 3 <= Q * #|V| * (#|touched out V| * #|touched inp V| * #|touched ker V|).
Hypothesis largest : minn cap size_of_group <= q.

Theorem executed_each : (\sum_(v in work) w v) ^ 3 <= Q * q * ((received_out e + #|touched out work|) *
  (received_inp e + #|touched inp work|) * (received_ker e + #|touched ker work|)).
Proof.
have steps : cap <= cap * 1 by rewrite muln1.
have [c [x y z]] := cut e steps groups.
have one (f : P -> 'I_1 -> nat) : \sum_p \sum_(j < 1) f p j = \sum_p f p ord0.
  by apply: eq_bigr => p _; rewrite big_ord_recl big_ord0 addn0.
rewrite !one in x y z.
apply: leq_trans (accessed_volume ag bg cg geometry (most c)) _.
rewrite leq_mul // ?leq_mul //.
- apply: leq_trans (one_segment (fun p => writes c p ord0) (own := own_a c) _) _; last by rewrite leq_add2r.
  by move=> p v; apply: end_a.
- apply: leq_trans (one_segment (fun p => reads_b c p ord0) (own := own_b c) _) _; last by rewrite leq_add2r.
  by move=> p v; apply: start_b.
apply: leq_trans (one_segment (fun p => reads_c c p ord0) (own := own_c c) _) _; last by rewrite leq_add2r.
by move=> p v; apply: start_c.
Qed.
End Whole.
