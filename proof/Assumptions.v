(* What the theorems assume beyond their hypotheses: nothing. Every line that this prints must be "Closed under the
   global context", as `make proof-quick` checks. *)
From Synth Require Import Inequalities Binary Forms Constants Geometry Execution Segments Schedule Convolution Bound
  Layer Certificate MatrixProduct Strategies Training.
Print Assumptions one_process.
Print Assumptions cut.
Print Assumptions integral_bounded.
Print Assumptions perron.
Print Assumptions proved_bounded.
Print Assumptions one_class.
Print Assumptions all_classes.
Print Assumptions accessed_bound.
Print Assumptions universal_bound.
Print Assumptions forward_bound.
Print Assumptions backward_data_bound.
Print Assumptions backward_weight_bound.
Print Assumptions convolution.
Print Assumptions memory_independent.
Print Assumptions forward_each.
Print Assumptions each_matrix.
Print Assumptions regimes.
Print Assumptions three_regimes.
Print Assumptions strategy_is_an_execution.
Print Assumptions strategy_bound.
Print Assumptions grid_words.
Print Assumptions grid_bound.
Print Assumptions training_bound.
Print Assumptions training_step.
Print Assumptions certified_forward.
Print Assumptions certified_backward_data.
Print Assumptions certified_backward_weight.
