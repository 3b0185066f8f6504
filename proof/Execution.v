(* What an execution is: the definitions that the theorems are about. They are those of docs/bounds.md, word for word.
   *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Execution.
(* The finite set M of multiply-adds. Each touches one word of Out, one of In and one of Ker. A, B and C are the words
   of Out, In and Ker. `work` are the multiply-adds with a real input element, not padding. *)
Variables (M A B C : finType) (out : M -> A) (inp : M -> B) (ker : M -> C) (work : {set M}).

(* A word of any of the three tensors. In a memory, a word of Out is a partial sum of it. *)
Definition word := [finType of A + B + C].
Definition Out (x : A) : word := inl (inl x).
Definition In (x : B) : word := inl (inr x).
Definition Ker (x : C) : word := inr x.
Definition is_sum (x : word) := if x is inl (inl _) then true else false.

(* The words that a multiply-add of `work` touches. All others, such as rows of padding, are never computed with. *)
Definition used : {set word} :=
  [set x | [exists v in work, [|| x == Out (out v), x == In (inp v) | x == Ker (ker v)]]].

Lemma used_out v : v \in work -> Out (out v) \in used.
Proof. by move=> vw; rewrite in_set; apply/existsP; exists v; rewrite vw eqxx. Qed.
Lemma used_inp v : v \in work -> In (inp v) \in used.
Proof. by move=> vw; rewrite in_set; apply/existsP; exists v; rewrite vw eqxx orbT. Qed.
Lemma used_ker v : v \in work -> Ker (ker v) \in used.
Proof. by move=> vw; rewrite in_set; apply/existsP; exists v; rewrite vw eqxx !orbT. Qed.

(* What a process does, one thing after the other. *)
Inductive event :=
  | Compute of M     (* a multiply-add *)
  | Send of word     (* to some process *)
  | Receive of word  (* from some process *)
  | Drop of word.    (* out of memory *)

(* What must be in memory, a set of words. Intermediate results are not recomputed, so a partial sum is never dropped.
   *)
Definition allowed (memory : {set word}) (e : event) : bool :=
  match e with
  | Compute v => (In (inp v) \in memory) && (Ker (ker v) \in memory)
  | Send x => x \in memory
  | Receive x => true
  | Drop x => ~~ is_sum x
  end.

(* The memory after an event. A multiply-add makes or updates a partial sum. A partial sum that is sent is gone, and
   one that is received is added to what is there. An operand that is sent stays, until it is dropped. *)
Definition after (memory : {set word}) (e : event) : {set word} :=
  match e with
  | Compute v => Out (out v) |: memory
  | Send x => if is_sum x then memory :\ x else memory
  | Receive x => x |: memory
  | Drop x => memory :\ x
  end.

(* The memory after several events, and whether all of them are allowed. *)
Definition run : {set word} -> seq event -> {set word} := foldl after.
Fixpoint legal (memory : {set word}) (s : seq event) : bool :=
  if s is e :: s' then allowed memory e && legal (after memory e) s' else true.

Definition computes v e := if e is Compute u then u == v else false.
Definition works e := if e is Compute _ then true else false.
Definition sends x e := if e is Send y then y == x else false.
Definition receives x e := if e is Receive y then y == x else false.
Definition gets e := if e is Receive _ then true else false.

(* The words that a process owns: of In and Ker at the start, of Out at the end. *)
Definition start (P : finType) (owner : word -> P) p : {set word} := [set x | ~~ is_sum x & owner x == p].

(* An execution on the processes P with memories of `mem` words. No process performs more than `cap` multiply-adds. *)
Record execution (P : finType) (mem cap : nat) := Execution {
  events : P -> seq event;
  owner : word -> P;
  (* Each multiply-add with a real input element is performed once, by one of the processes; padding is not. *)
  once : forall v, \sum_p count (computes v) (events p) = (v \in work);
  (* No process performs more than cap of them. *)
  capped : forall p, count works (events p) <= cap;
  (* At the start every word of In and Ker is in one place only, its owner's memory. Every event is allowed. *)
  lawful : forall p, legal (start owner p) (events p);
  (* Neither at the start nor after any event has a memory more than mem words that are used; others take no room. *)
  fits : forall p i, #|run (start owner p) (take i (events p)) :&: used| <= mem;
  (* At the end a word of Out is in no memory but its owner's. *)
  finish : forall p x, Out x \in run (start owner p) (events p) -> owner (Out x) = p;
  (* Words travel point to point: each word is received as often as it is sent. *)
  delivered : forall x, \sum_p count (sends x) (events p) = \sum_p count (receives x) (events p) }.

(* The words that a process receives, that all receive together, and that the one receives that receives most. *)
Definition received P mem cap (e : execution P mem cap) p := count gets (events e p).
Definition all_received P mem cap (e : execution P mem cap) := \sum_p received e p.
Definition most_received P mem cap (e : execution P mem cap) := \max_p received e p.
(* The words of one tensor that all processes receive together. *)
Definition received_out P mem cap (e : execution P mem cap) := \sum_x \sum_p count (receives (Out x)) (events e p).
Definition received_inp P mem cap (e : execution P mem cap) := \sum_x \sum_p count (receives (In x)) (events e p).
Definition received_ker P mem cap (e : execution P mem cap) := \sum_x \sum_p count (receives (Ker x)) (events e p).

Lemma average P mem cap (e : execution P mem cap) : all_received e <= #|P| * most_received e.
Proof.
by rewrite -sum_nat_const; apply: leq_sum => p _; apply: (@leq_bigmax _ (fun p => received e p)).
Qed.

(* The definition is not empty: one process does all the work and receives nothing. *)
Lemma one_process : exists e : execution unit_finType #|word| #|work|, all_received e = 0.
Proof.
pose s := map Compute (enum work).
have no (f : pred event) : (forall v, ~~ f (Compute v)) -> count f s = 0.
  by move=> nf; rewrite count_map -(count_pred0 (enum work)); apply: eq_count => v; apply/negbTE/nf.
have grow (m : {set word}) r : m \subset run m (map Compute r).
  by elim: r m => //= v r IH m; apply: subset_trans (IH _); rewrite subsetU1.
unshelve eexists; first apply: (@Execution unit_finType #|word| #|work| (fun=> s) (fun=> tt)).
- move=> v; rewrite (bigD1 tt) //= big1 ?addn0 => [|[]] //; rewrite count_map.
  have -> : (v \in work) = (v \in enum work) by rewrite mem_enum.
  by rewrite -(count_uniq_mem v (enum_uniq _)); apply: eq_count => u /=; rewrite eq_sym.
- by move=> p; rewrite count_map (eq_count (a2 := predT)) // count_predT -cardE.
- move=> p; rewrite /s; set m := start _ p.
  have own x : ~~ is_sum x -> x \in m by rewrite !inE => ->; case: (p).
  elim: (enum work) m own => //= v r IH m own; rewrite !own //=; apply: IH => x nx.
  by rewrite inE own ?orbT.
- by move=> p i; apply: max_card.
- by move=> [].
- by move=> x; rewrite !big1 // => p _; apply: no.
by rewrite /all_received big1 // => p _; apply: no.
Qed.
End Execution.
