(* Strategies are executions: whoever performs a multiply-add, in which panel, and whoever owns the words, a process
   can gather the operands that it does not own, panel by panel, and send its partial sums to their owners. So every
   theorem about executions holds for every grid: 2D, 2.5D, 3D, and the splits of samples, rows, channels or filters. *)
From mathcomp Require Import all_ssreflect.
From mathcomp Require Import zify.
From Coq Require Import Lia.
From Synth Require Import Inequalities Forms Geometry Execution Segments Schedule Convolution Bound MatrixProduct.
Set Implicit Arguments. Unset Strict Implicit. Unset Printing Implicit Defensive.

Section Lists.
Variables (M A B C : finType) (out : M -> A) (inp : M -> B) (ker : M -> C) (mem : nat).
Local Notation word := (word A B C).
Local Notation event := (event M A B C).
Local Notation Out := (@Out A B C).
Local Notation is_sum := (@is_sum A B C).
Local Notation run := (run out).
Local Notation legal := (legal out inp ker).
Local Notation Compute := (@Compute M A B C).
Local Notation Send := (@Send M A B C).
Local Notation Receive := (@Receive M A B C).
Local Notation Drop := (@Drop M A B C).
Implicit Types (m : {set word}) (s t : seq event) (xs : seq word) (vs : seq M) (x : word).

Lemma run_cat m s t : run m (s ++ t) = run (run m s) t. Proof. exact: foldl_cat. Qed.

Lemma run_receive m xs x : (x \in run m (map Receive xs)) = (x \in m) || (x \in xs).
Proof.
by elim: xs m => [|y xs IH] m /=; rewrite ?in_nil ?orbF // IH in_setU1 in_cons orbCA orbA.
Qed.
Lemma run_compute m vs x : (x \in run m (map Compute vs)) = (x \in m) || (x \in [seq Out (out v) | v <- vs]).
Proof.
by elim: vs m => [|v vs IH] m /=; rewrite ?in_nil ?orbF // IH in_setU1 in_cons orbCA orbA.
Qed.
Lemma run_drop m xs x : (x \in run m (map Drop xs)) = (x \in m) && (x \notin xs).
Proof.
elim: xs m => [|y xs IH] m /=; first by rewrite andbT.
by rewrite IH in_setD1 in_cons negb_or -andbA [in RHS]andbCA.
Qed.
Lemma run_send_sums m xs x : all is_sum xs -> (x \in run m (map Send xs)) = (x \in m) && (x \notin xs).
Proof.
elim: xs m => [|y xs IH] m /=; first by rewrite andbT.
by case/andP => ys /IH ->; rewrite ys in_setD1 in_cons negb_or -andbA [in RHS]andbCA.
Qed.
Lemma run_send_operands m xs : all (fun x => ~~ is_sum x) xs -> run m (map Send xs) = m.
Proof. by elim: xs m => [|y xs IH] m //= /andP[/negbTE -> /IH ->]. Qed.

Lemma legal_receive m xs : legal m (map Receive xs). Proof. by elim: xs m => /=. Qed.
Lemma legal_drop m xs : all (fun x => ~~ is_sum x) xs -> legal m (map Drop xs).
Proof. by elim: xs m => [|y xs IH] m //= /andP[-> /IH ->]. Qed.
Lemma legal_compute m vs :
  {in vs, forall v, (In A C (inp v) \in m) && (Ker A B (ker v) \in m)} -> legal m (map Compute vs).
Proof.
elim: vs m => [|v vs IH] m //= ok; rewrite ok ?mem_head //=; apply: IH => u uv.
by have /andP[a b] := ok u (mem_behead (uv : u \in behead (v :: vs))); rewrite !in_setU1 a b !orbT.
Qed.
Lemma legal_send m xs : uniq xs -> {subset xs <= m} -> legal m (map Send xs).
Proof.
elim: xs m => [|y xs IH] m //= /andP[yx un] sub; rewrite sub ?mem_head //=; apply: IH => // x xx.
have xm : x \in m by apply: sub; rewrite in_cons xx orbT.
case: ifP => // _; rewrite in_setD1 xm andbT; by apply: contraNneq yx => <-.
Qed.
Lemma legal_send_operands m xs : all (fun x => ~~ is_sum x) xs -> {subset xs <= m} -> legal m (map Send xs).
Proof.
elim: xs m => [|y xs IH] m //= /andP[/negbTE -> nx] sub; rewrite sub ?mem_head //=; apply: IH => // x xx.
by apply: sub; rewrite in_cons xx orbT.
Qed.

(* Events that are allowed, and a memory that stays small. *)
Definition fine m s := legal m s /\ forall i, #|run m (take i s)| <= mem.

Lemma fine_cat m s t : fine m s -> fine (run m s) t -> fine m (s ++ t).
Proof.
move=> [ls fs] [lt ft]; split=> [|i]; first by rewrite legal_cat ls.
by rewrite take_cat; case: ifP => _ //; rewrite run_cat.
Qed.

Definition adds x e := match e with
  | Execution.Compute v => Out (out v) == x
  | Execution.Receive y => y == x
  | _ => false
  end.

Lemma fine_in m s (Z : {set word}) : legal m s -> m \subset Z -> (forall x, has (adds x) s -> x \in Z) -> #|Z| <= mem ->
  fine m s.
Proof.
move=> l mZ sZ Zm; split=> // i; apply: leq_trans Zm; apply: subset_leq_card; move: mZ.
have {l sZ} : forall x, has (adds x) (take i s) -> x \in Z.
  by move=> x h; apply: sZ; rewrite -(cat_take_drop i s) has_cat h.
elim: (take i s) m => [|e r IH] m //= rZ mZ; apply: IH => [x h|]; first by apply: rZ; rewrite h orbT.
have new x : adds x e -> x \in Z by move=> h; apply: rZ; rewrite h.
case: e new {rZ} => [v|y|y|y] /= new.
- by rewrite subUset mZ andbT sub1set new.
- by case: ifP => _ //; apply: subset_trans mZ; apply: subD1set.
- by rewrite subUset mZ andbT sub1set new.
by apply: subset_trans mZ; apply: subD1set.
Qed.

Lemma count_repeated (T : finType) (f : pred event) (g : T -> event) (k : T -> nat) (ts : seq T) :
  count f [seq g x | x <- flatten [seq nseq (k x) x | x <- ts]] = \sum_(x <- ts) f (g x) * k x.
Proof.
by elim: ts => [|y ts IH]; rewrite ?big_nil //= big_cons map_cat count_cat IH map_nseq count_nseq.
Qed.

Lemma count_flatten_map (T : Type) (f : pred event) (g : T -> seq event) (ts : seq T) :
  count f (flatten [seq g x | x <- ts]) = \sum_(x <- ts) count f (g x).
Proof. by elim: ts => [|y ts IH]; rewrite ?big_nil //= big_cons count_cat IH. Qed.
End Lists.

Section Gather.
Variables (M A B C : finType) (out : M -> A) (inp : M -> B) (ker : M -> C) (work : {set M}).
Local Notation word := (word A B C).
Local Notation Out := (@Out A B C).
Local Notation is_sum := (@is_sum A B C).
Local Notation In := (@In A B C).
Local Notation Ker := (@Ker A B C).
Local Notation Compute := (@Compute M A B C).
Local Notation Send := (@Send M A B C).
Local Notation Receive := (@Receive M A B C).
Local Notation Drop := (@Drop M A B C).
Local Notation run := (run out).
Local Notation legal := (legal out inp ker).

(* A strategy on the processes P: who performs a multiply-add, in which of its n + 1 panels, and who owns a word. *)
Variables (P : finType) (n : nat) (does : M -> P * 'I_n.+1) (owner : word -> P).
Definition in_panel p j := [set v in work | does v == (p, j)].
(* The operands of a panel that its process does not own. *)
Definition gathers p j : {set word} :=
  [set x | owner x != p & [exists v in in_panel p j, (x == In (inp v)) || (x == Ker (ker v))]].
(* The partial sums of a process; those that it does not own. *)
Definition makes p : {set word} := [set x | [exists v in work, ((does v).1 == p) && (x == Out (out v))]].
Definition reduces p : {set word} := [set x in makes p | owner x != p].
Definition own_sums p : {set word} := [set x | is_sum x & owner x == p].

(* How often a word is gathered, and a partial sum sent to its owner. The words that a process receives. *)
Definition gathered x := #|[set i : P * 'I_n.+1 | x \in gathers i.1 i.2]|.
Definition reduced x := #|[set p | x \in reduces p]|.
Definition strategy_words p := \sum_j #|gathers p j| + \sum_(x in own_sums p) reduced x.

(* The memory holds a process's own operands, those of one panel, and its sums. No process does more than cap. *)
Variables (mem cap : nat).
Hypothesis room : forall p j, #|start owner p :|: gathers p j :|: (makes p :|: own_sums p)| <= mem.
Hypothesis work_of : forall p, #|[set v in work | (does v).1 == p]| <= cap.

Let panel p j := map Receive (enum (gathers p j)) ++ map Compute (enum (in_panel p j)) ++ map Drop (enum (gathers p j)).
Let served p := flatten [seq nseq (gathered x) x | x <- enum (start owner p)].
Let collected p := flatten [seq nseq (reduced x) x | x <- enum (own_sums p)].
Let strategy p := map Send (served p) ++ flatten [seq panel p j | j <- enum 'I_n.+1] ++
  map Send (enum (reduces p)) ++ map Receive (collected p).

Let gathersP p j x : x \in gathers p j -> ~~ is_sum x /\ owner x != p.
Proof. by rewrite in_set => /andP[no /existsP[v /andP[_ /orP[]/eqP e]]]; rewrite e in no *. Qed.

Let makesP p x : x \in makes p -> is_sum x.
Proof. by rewrite in_set => /existsP[v /and3P[_ _ /eqP ->]]. Qed.

Let startP p x : x \in start owner p -> ~~ is_sum x /\ owner x = p.
Proof. by rewrite in_set => /andP[nx /eqP]. Qed.

Let repeatedP (k : word -> nat) (S : {set word}) x : x \in flatten [seq nseq (k y) y | y <- enum S] -> x \in S.
Proof. by case/flattenP => _ /mapP[y yS ->]; rewrite mem_nseq => /andP[_ /eqP ->]; rewrite mem_enum in yS. Qed.

(* The memory after some panels. *)
Let outs p (js : seq 'I_n.+1) : {set word} :=
  [set x | [exists v in work, [&& (does v).1 == p, (does v).2 \in js & x == Out (out v)]]].
Let state p js := start owner p :|: outs p js.

Let outs_make p js x : x \in outs p js -> x \in makes p.
Proof.
rewrite !in_set => /existsP[v /and4P[vw vp _ e]]; by apply/existsP; exists v; rewrite vw vp.
Qed.

Let outs_cons p j js x :
  (x \in outs p (j :: js)) = (x \in outs p js) || (x \in [seq Out (out v) | v <- enum (in_panel p j)]).
Proof.
rewrite !in_set; apply/idP/idP => [/existsP[v /and4P[vw vp]]|].
  rewrite in_cons => /orP[/eqP vj e|vj e]; apply/orP; [right|left; apply/existsP; exists v; exact/and4P].
  apply/mapP; exists v; last exact/eqP.
  by rewrite mem_enum in_set vw [does v]surjective_pairing (eqP vp) vj eqxx.
case/orP => [/existsP[v /and4P[vw vp vj e]]|/mapP[v]].
  by apply/existsP; exists v; rewrite vw vp in_cons vj orbT.
rewrite mem_enum in_set => /andP[vw /eqP dv] ->; apply/existsP; exists v.
by rewrite vw dv in_cons !eqxx.
Qed.

Let run_panel p j js : run (state p js) (panel p j) = state p (j :: js).
Proof.
apply/setP => x; rewrite /panel !run_cat run_drop run_compute run_receive ![x \in state _ _]in_setU !mem_enum outs_cons.
case: (boolP (x \in gathers p j)) => [/gathersP[nx no]|_]; last by rewrite andbT orbF orbA.
rewrite andbF; apply/esym/negbTE; rewrite !negb_or; apply/and3P; split.
- by apply/negP => /startP[_ e]; rewrite e eqxx in no.
- by apply/negP => /outs_make/makesP; apply/negP.
by apply/negP => /mapP[v _ e]; rewrite e in nx.
Qed.

Let there p j v x : v \in in_panel p j -> ~~ is_sum x -> (x == In (inp v)) || (x == Ker (ker v)) ->
  (x \in start owner p) || (x \in gathers p j).
Proof.
move=> vp nx e; rewrite !in_set nx /=; case: (owner x == p) => //=.
by apply/existsP; exists v; rewrite vp.
Qed.

Let state_in p j js : state p js \subset start owner p :|: gathers p j :|: (makes p :|: own_sums p).
Proof. by apply/subsetP => x; rewrite !in_setU => /orP[->|/outs_make ->]; rewrite ?orbT. Qed.

Let fine_panel p j js : fine out inp ker mem (state p js) (panel p j).
Proof.
apply: fine_in _ (state_in p j js) _ (room p j) => [|x].
  rewrite /panel !legal_cat legal_receive legal_drop ?andbT /=; last first.
    by apply/allP => x; rewrite mem_enum => /gathersP[].
  apply: legal_compute => v; rewrite mem_enum => vp.
  by apply/andP; split; rewrite run_receive mem_enum in_setU orbAC (there vp) // eqxx ?orbT.
rewrite /panel !has_cat !has_map !in_setU => /or3P[] /hasP[y].
- by rewrite mem_enum => yg /eqP <-; rewrite yg ?orbT.
- rewrite mem_enum in_set => /andP[yw /eqP dy] /eqP <-; apply/orP; right; apply/orP; left.
  by rewrite in_set; apply/existsP; exists y; rewrite yw dy !eqxx.
by [].
Qed.

Let fine_nil p js : fine out inp ker mem (state p js) [::].
Proof. by apply: fine_in _ (state_in p ord0 js) _ (room p ord0). Qed.

Let fine_panels p ks js : fine out inp ker mem (state p js) (flatten [seq panel p j | j <- ks])
  /\ run (state p js) (flatten [seq panel p j | j <- ks]) = state p (catrev ks js).
Proof.
elim: ks js => [|k ks IH] js /=; first by split=> //; apply: fine_nil.
have [f r] := IH (k :: js); rewrite run_cat run_panel r; split=> //.
by apply: fine_cat; [exact: fine_panel|rewrite run_panel].
Qed.

Let all_panels := catrev (enum 'I_n.+1) [::].
Let made p x : x \in makes p -> x \in outs p all_panels.
Proof.
rewrite !in_set => /existsP[v /and3P[vw vp e]]; apply/existsP; exists v.
by rewrite vw vp e /all_panels catrevE cats0 mem_rev mem_enum.
Qed.

Let state0 p : state p [::] = start owner p.
Proof.
apply/setP => x; rewrite in_setU [x \in outs _ _](_ : _ = false) ?orbF //.
by rewrite in_set; apply/negbTE/existsP => -[v /and4P[]].
Qed.

Let serve_all p : all (fun x => ~~ is_sum x) (served p).
Proof. by apply/allP => x /repeatedP/startP[]. Qed.

Let sums p : all is_sum (enum (reduces p)).
Proof. by apply/allP => x; rewrite mem_enum in_set => /andP[/makesP]. Qed.

Let strategy_fine p : fine out inp ker mem (start owner p) (strategy p).
Proof.
have in_room x : x \in makes p :|: own_sums p -> x \in start owner p :|: gathers p ord0 :|: (makes p :|: own_sums p).
  by move=> h; rewrite in_setU h orbT.
apply: fine_cat.
  apply: fine_in _ _ _ (room p ord0) => [||x].
  - by apply: legal_send_operands (serve_all p) _ => x /repeatedP.
  - by apply/subsetP => x xs; rewrite !in_setU xs.
  by rewrite has_map => /hasP[].
rewrite (run_send_operands out _ (serve_all p)) -state0; have [f r] := fine_panels p (enum 'I_n.+1) [::].
apply: fine_cat f _; rewrite r -/all_panels; apply: fine_cat.
  apply: fine_in _ (state_in p ord0 all_panels) _ (room p ord0) => [|x]; last by rewrite has_map => /hasP[].
  apply: legal_send (enum_uniq _) _ => x; rewrite mem_enum in_set => /andP[/made xm _].
  by rewrite in_setU xm orbT.
apply: fine_in _ _ _ (room p ord0) => [||x]; first exact: legal_receive.
  apply/subsetP => x; rewrite run_send_sums ?sums // => /andP[xs _].
  exact: (subsetP (state_in p ord0 all_panels)).
by rewrite has_map => /hasP[y /repeatedP yo /eqP <-]; apply: in_room; rewrite in_setU yo orbT.
Qed.

Let finishes p x : Out x \in run (start owner p) (strategy p) -> owner (Out x) = p.
Proof.
rewrite /strategy !run_cat (run_send_operands out _ (serve_all p)) -{1}state0.
have [_ ->] := fine_panels p (enum 'I_n.+1) [::].
rewrite run_receive run_send_sums ?sums // mem_enum => /orP[/andP[]|/repeatedP].
  rewrite in_setU => /orP[/startP[]//|/outs_make xm]; rewrite in_set xm /= negbK => /eqP //.
by rewrite in_set => /andP[_ /eqP].
Qed.

(* Counting events. *)
Let count_enum (S : {set word}) x : count (fun y => y == x) (enum S) = (x \in S).
Proof. by rewrite -mem_enum -(count_uniq_mem x (enum_uniq _)). Qed.

Let count_panels f p : count f (flatten [seq panel p j | j <- enum 'I_n.+1]) = \sum_j count f (panel p j).
Proof. by rewrite count_flatten_map big_enum. Qed.

Let no_event (f : pred (event M A B C)) (T : Type) (g : T -> event M A B C) (s : seq T) :
  (forall x, ~~ f (g x)) -> count f (map g s) = 0.
Proof. by move=> no; rewrite count_map -(count_pred0 s); apply: eq_count => x; apply/negbTE/no. Qed.

Let computed v p : count (computes v) (strategy p) = \sum_j (v \in in_panel p j).
Proof.
rewrite /strategy !count_cat count_panels !no_event // add0n !addn0; apply: eq_bigr => j _.
rewrite /panel !count_cat (no_event (g := Receive)) // (no_event (g := Drop)) // addn0 count_map -mem_enum.
by rewrite -(count_uniq_mem v (enum_uniq _)).
Qed.

Let sent x p : count (sends x) (strategy p) = (x \in start owner p) * gathered x + (x \in reduces p).
Proof.
rewrite /strategy !count_cat count_panels [X in _ + (X + _)]big1 => [|j _]; last by rewrite /panel !count_cat !no_event.
rewrite count_repeated big_enum /= [X in _ + (_ + (_ + X))]no_event // addn0 add0n count_map.
rewrite -(count_enum (reduces p)); congr (_ + _).
case: (boolP (x \in start owner p)) => xs; last first.
  by rewrite big1 // => y ys; case: eqP => [e|]; [rewrite -e ys in xs|rewrite mul0n].
rewrite (bigD1 x) //= eqxx mul1n big1 ?addn0 ?mul1n // => y /andP[_ /negbTE ->]; exact: mul0n.
Qed.

Let got x p : count (receives x) (strategy p) = \sum_j (x \in gathers p j) + (x \in own_sums p) * reduced x.
Proof.
rewrite /strategy !count_cat count_panels no_event // add0n no_event // add0n; congr (_ + _).
  apply: eq_bigr => j _.
  by rewrite /panel !count_cat !(no_event (g := Compute), no_event (g := Drop)) // !addn0 count_map -count_enum.
rewrite count_repeated big_enum /=; case: (boolP (x \in own_sums p)) => xs; last first.
  by rewrite big1 // => y ys; case: eqP => [e|]; [rewrite -e ys in xs|rewrite mul0n].
rewrite (bigD1 x) //= eqxx mul1n big1 ?addn0 ?mul1n // => y /andP[_ /negbTE ->]; exact: mul0n.
Qed.

Let gathered_sum x : gathered x = \sum_p \sum_j (x \in gathers p j).
Proof. by rewrite pair_bigA /gathered -sum_in; apply: eq_bigr => i _; rewrite in_set. Qed.

Let reduced_sum x : reduced x = \sum_p (x \in reduces p).
Proof. by rewrite /reduced -sum_in; apply: eq_bigr => p _; rewrite in_set. Qed.

Let one_owner x k : \sum_p (owner x == p) * k = k.
Proof. by rewrite (bigD1 (owner x)) //= eqxx mul1n big1 ?addn0 // => p; rewrite eq_sym => /negbTE ->. Qed.

Lemma sum_gathered x : is_sum x -> gathered x = 0.
Proof. by move=> xs; apply: eq_card0 => i; rewrite in_set; apply/negP => /gathersP[]; rewrite xs. Qed.

Lemma operand_reduced x : ~~ is_sum x -> reduced x = 0.
Proof.
move=> xs; apply: eq_card0 => p; rewrite in_set; apply/negP; rewrite in_set => /andP[/makesP]; by rewrite (negbTE xs).
Qed.

Lemma in_gathers x p j : x \in gathers p j ->
  exists v, [/\ does v = (p, j), owner x != p & (x == In (inp v)) || (x == Ker (ker v))].
Proof.
rewrite in_set => /andP[no /existsP[v /andP[]]]; rewrite in_set => /andP[_ /eqP dv] e.
by exists v.
Qed.

Lemma in_reduces x p : x \in reduces p -> exists v, [/\ (does v).1 = p, owner x != p & x = Out (out v)].
Proof.
rewrite in_set => /andP[]; rewrite in_set => /existsP[v /and3P[_ /eqP dv /eqP e]] no.
by exists v.
Qed.

Theorem strategy_is_an_execution : exists e : execution out inp ker work P mem cap,
  forall p, received e p = strategy_words p.
Proof.
have delivers x : \sum_p count (sends x) (strategy p) = \sum_p count (receives x) (strategy p).
  rewrite (eq_bigr _ (fun p _ => sent x p)) (eq_bigr _ (fun p _ => got x p)) !big_split /= -gathered_sum -reduced_sum.
  case: (boolP (is_sum x)) => xs.
    rewrite sum_gathered // big1 ?add0n => [|p _]; last by rewrite muln0.
    by rewrite -{1}(one_owner x (reduced x)); apply: eq_bigr => p _; rewrite in_set xs.
  rewrite operand_reduced // addn0 [X in _ = _ + X]big1 ?addn0 => [|p _]; last by rewrite muln0.
  by rewrite -{2}(one_owner x (gathered x)); apply: eq_bigr => p _; rewrite in_set xs.
unshelve eexists; first apply: (@Execution _ _ _ _ out inp ker work P mem cap strategy owner) => //.
- move=> v; rewrite (eq_bigr _ (fun p _ => computed v p)) pair_bigA /=.
  rewrite (bigD1 (does v)) //= big1 => [|[p j] /= no]; last first.
    by rewrite in_set eq_sym (negbTE no) andbF.
  by rewrite addn0 in_set -surjective_pairing eqxx andbT.
- move=> p; apply: leq_trans (work_of p); rewrite /strategy !count_cat count_panels !no_event // add0n !addn0.
  rewrite (eq_bigr (fun j => #|in_panel p j|)) => [|j _]; last first.
    rewrite /panel !count_cat (no_event (g := Receive)) // (no_event (g := Drop)) // addn0 count_map.
    by rewrite (eq_count (a2 := predT)) // count_predT -cardE.
  apply: disjoint_sum => [j j' v|j]; first by rewrite !in_set => /andP[_ /eqP ->] /andP[_ /eqP []].
  by apply/subsetP => v; rewrite !in_set => /andP[-> /eqP ->] /=.
- by move=> p; case: (strategy_fine p).
- by move=> p i; case: (strategy_fine p) => _ f; apply: leq_trans (subset_leq_card (subsetIl _ _)) (f i).
move=> p; rewrite /received /= /strategy !count_cat count_panels no_event // add0n no_event // add0n; congr (_ + _).
  apply: eq_bigr => j _; rewrite /panel !count_cat !(no_event (g := Compute), no_event (g := Drop)) // !addn0 count_map.
  by rewrite (eq_count (a2 := predT)) // count_predT -cardE.
by rewrite count_repeated big_enum; apply: eq_bigr => x _; rewrite mul1n.
Qed.

(* The words of all processes together: each word as often as it is gathered or reduced. *)
Lemma all_words : \sum_p strategy_words p <= \sum_x (gathered x + reduced x).
Proof.
rewrite !big_split /=; apply: leq_add.
  apply: eq_leq; rewrite [RHS](eq_bigr _ (fun x _ => gathered_sum x)) [RHS]exchange_big; apply: eq_bigr => p _ /=.
  by rewrite [RHS]exchange_big; apply: eq_bigr => j _; rewrite sum_in.
rewrite (eq_bigr (fun p => \sum_x (x \in own_sums p) * reduced x)) => [|p _]; last first.
  by rewrite [LHS]big_mkcond; apply: eq_bigr => x _; case: (_ \in _); rewrite ?mul1n.
rewrite exchange_big; apply: leq_sum => x _; rewrite -{2}(one_owner x (reduced x)) /=; apply: leq_sum => p _.
by rewrite leq_mul2r in_set; apply/orP; right; case: (is_sum x).
Qed.
End Gather.

(* For every strategy on every layer, the words that a process receives are not fewer than the bound says. *)
Section Convolution.
Variables (D : nat) (N n sigma delta : 'I_D -> nat).
Hypotheses (sigma_pos : forall d, 0 < sigma d) (delta_pos : forall d, 0 < delta d).
Variables Sample Group Filter Channel : finType.
Local Notation out := (@Convolution.out _ N n Sample Group Filter Channel).
Local Notation inp := (@Convolution.inp _ N n sigma delta delta_pos Sample Group Filter Channel).
Local Notation ker := (@Convolution.ker _ N n Sample Group Filter Channel).
Variable work : {set Madd N n Sample Group Filter Channel}.
Variables (P : finType) (panels : nat) (does : Madd N n Sample Group Filter Channel -> P * 'I_panels.+1).
Variable owner : word [finType of Sample * Group * Filter * Position N]
  [finType of Sample * Group * Channel * Row N n sigma delta] [finType of Group * Filter * Channel * Tap n] -> P.
Variables mem cap : nat.
Hypothesis room : forall p j,
  #|start owner p :|: gathers inp ker work does owner p j :|: (makes _ _ out work does p :|: own_sums owner p)| <= mem.
Hypothesis work_of : forall p, #|[set v in work | (does v).1 == p]| <= cap.

Theorem strategy_bound (cuts q : nat) : cap <= q * cuts.+1 ->
  27 * #|work| ^ 3 <= (\prod_d minn (N d) (n d)) * q *
    (#|P| * (\max_p strategy_words out inp ker work does owner p) + #|P| * cuts * mem + words sigma delta_pos work) ^ 3.
Proof.
move=> steps; have [e words_of] := strategy_is_an_execution room work_of.
have <- : most_received e = \max_p strategy_words out inp ker work does owner p.
  by apply: eq_bigr => p _; apply: words_of.
exact: convolution.
Qed.
End Convolution.

(** * Matrix products on grids *)

(* Rows, columns and inner indices are divided into parts, one for each coordinate of a process. The words of In, say,
   are with the processes that read them. The panels are sets of inner indices. 1D, 2D, 2.5D and 3D are such grids. *)
Section Grid.
Variables (I J L PI PJ PL : finType) (n : nat) (row : I -> PI) (column : J -> PJ) (inner : L -> PL).
Variable panel : L -> 'I_n.+1.
Variables (own_out : I * J -> PL) (own_inp : I * L -> PJ) (own_ker : L * J -> PI).
Local Notation out := (@MatrixProduct.out I J L).
Local Notation inp := (@MatrixProduct.inp I J L).
Local Notation ker := (@MatrixProduct.ker I J L).
Local Notation word := (word [finType of I * J] [finType of I * L] [finType of L * J]).
Local Notation Out := (@Execution.Out [finType of I * J] [finType of I * L] [finType of L * J]).
Local Notation In := (@Execution.In [finType of I * J] [finType of I * L] [finType of L * J]).
Local Notation Ker := (@Execution.Ker [finType of I * J] [finType of I * L] [finType of L * J]).
Definition grid := [finType of PI * PJ * PL].
Definition grid_does (v : Product I J L) : grid * 'I_n.+1 := ((row v.1.1, column v.1.2, inner v.2), panel v.2).
Definition grid_owner (x : word) : grid := match x with
  | inl (inl y) => (row y.1, column y.2, own_out y)
  | inl (inr y) => (row y.1, own_inp y, inner y.2)
  | inr y => (own_ker y, column y.2, inner y.1)
  end.
Local Notation gathers := (gathers inp ker [set: Product I J L] grid_does grid_owner).
Local Notation gathered := (gathered inp ker [set: Product I J L] grid_does grid_owner).
Local Notation reduces := (reduces out [set: Product I J L] grid_does grid_owner).
Local Notation reduced := (reduced out [set: Product I J L] grid_does grid_owner).

Let others (T W : finType) (f : T -> W) (x0 : T) (S : {set W}) :
  (forall i, i \in S -> exists2 x, x != x0 & i = f x) -> #|S| <= #|T| - 1.
Proof.
move=> h; rewrite subn1 -(cardC1 x0); apply: leq_trans (leq_imset_card f (predC1 x0)).
by apply/subset_leq_card/subsetP => i /h[x xx0 ->]; apply: imset_f; rewrite inE.
Qed.

Let of_out y : gathered (Out y) + reduced (Out y) <= #|PL| - 1.
Proof.
rewrite sum_gathered // add0n; apply: (others (f := fun c => (row y.1, column y.2, c)) (x0 := own_out y)) => p.
rewrite in_set => /in_reduces[v [<- no [e]]]; exists (inner v.2); last by rewrite e.
by apply: contraNneq no => c; rewrite /grid_owner /= -c e.
Qed.

Let of_inp y : gathered (In y) + reduced (In y) <= #|PJ| - 1.
Proof.
rewrite operand_reduced // addn0.
apply: (others (f := fun c => ((row y.1, c, inner y.2), panel y.2)) (x0 := own_inp y)) => -[p j].
rewrite in_set => /in_gathers[v [[<- <-] no read]].
have {read} e : y = inp v by case/orP: read => /eqP; [case|].
exists (column v.1.2); last by rewrite e.
by apply: contraNneq no => c; rewrite /grid_owner /= -c e.
Qed.

Let of_ker y : gathered (Ker y) + reduced (Ker y) <= #|PI| - 1.
Proof.
rewrite operand_reduced // addn0.
apply: (others (f := fun c => ((c, column y.2, inner y.1), panel y.1)) (x0 := own_ker y)) => -[p j].
rewrite in_set => /in_gathers[v [[<- <-] no read]].
have {read} e : y = ker v by case/orP: read => /eqP; [|case].
exists (row v.1.1); last by rewrite e.
by apply: contraNneq no => c; rewrite /grid_owner /= -c e.
Qed.

(* The words of a grid: all but one of the processes along columns receive a word of In, and so on. *)
Theorem grid_words : \sum_p strategy_words out inp ker [set: Product I J L] grid_does grid_owner p <=
  (#|PL| - 1) * (#|I| * #|J|) + (#|PJ| - 1) * (#|I| * #|L|) + (#|PI| - 1) * (#|L| * #|J|).
Proof.
have part (T : finType) (f : T -> nat) k : (forall y, f y <= k) -> \sum_y f y <= k * #|T|.
  by move=> h; rewrite mulnC -sum_nat_const; apply: leq_sum => y _.
apply: leq_trans (all_words _ _ _ _ _ _) _; rewrite big_sumType /= big_sumType /= -!card_prod.
by apply: leq_add; [apply: leq_add|]; apply: part => y; [exact: of_out|exact: of_inp|exact: of_ker].
Qed.

(* The bound beside the closed form. *)
Theorem grid_bound (cap : nat) : (forall p, #|[set v | (grid_does v).1 == p]| <= cap) ->
  27 * (#|I| * #|J| * #|L|) ^ 3 <=
    cap * (#|PL| * (#|I| * #|J|) + #|PJ| * (#|I| * #|L|) + #|PI| * (#|L| * #|J|)) ^ 3.
Proof.
move=> work_of.
have [|p|e words_of] := @strategy_is_an_execution _ _ _ _ out inp ker setT grid n grid_does grid_owner #|word| cap.
- by move=> p j; apply: max_card.
- by apply: leq_trans (work_of p); apply/subset_leq_card/subsetP => v; rewrite !in_set.
apply: leq_trans (no_floor (each_matrix e)) _; rewrite leq_mul2l leq_exp2r //; apply/orP; right.
have all : all_received e <= (#|PL| - 1) * (#|I| * #|J|) + (#|PJ| - 1) * (#|I| * #|L|) + (#|PI| - 1) * (#|L| * #|J|).
  by rewrite /all_received (eq_bigr _ (fun p _ => words_of p)) grid_words.
have whole (S T : finType) (f : S -> T) : (#|T| - 1) * #|S| + #|S| <= #|T| * #|S|.
  case: (posnP #|S|) => [->|/card_gt0P[x _]]; first by rewrite !muln0.
  have T0 : 0 < #|T| by apply/card_gt0P; exists (f x).
  by rewrite mulnBl mul1n subnK // leq_pmull.
have := whole _ _ own_out; have := whole _ _ own_inp; have := whole _ _ own_ker.
rewrite !card_prod; move: all; rewrite (all_receivedE e).
move: (received_out e) (received_inp e) (received_ker e); move: ((#|PL| - 1) * _) ((#|PJ| - 1) * _) ((#|PI| - 1) * _).
move: (#|PL| * _) (#|PJ| * _) (#|PI| * _); move: (#|I| * #|J|) (#|I| * #|L|) (#|L| * #|J|); clear; lia.
Qed.
End Grid.
