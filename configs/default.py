"""Every key that a run has, with its default.  An overlay changes some; `--config.SECTION.KEY=VALUE` changes one."""

from ml_collections import ConfigDict

from t2t.models import presets

# What `t2t train --help` shows; `--help all` shows the rest, too.
FIRST = {
  "data": ("files", "eval_files", "field", "objective", "mixture", "task_modules", "cache_dir", "vocabulary")
  + ("inputs_length", "targets_length", "pack"),
  "train": ("steps", "batch_size", "microbatches", "seed", "freeze"),
  "optimizer": ("name", "learning_rate", "schedule", "warmup_steps", "weight_decay", "clip_norm"),
  "eval": ("every", "batches", "tasks", "num_beams"),
  "checkpoint": ("every", "keep"),
  "logging": (),
  "numbers": (),
  "init": ("checkpoint", "inherit"),
  "mesh": ("dcn_data", "data", "fsdp", "sequence", "tensor"),
  "model": ("vocab_size", "embed_dim", "num_heads", "head_dim", "mlp_dim", "num_encoder_layers", "num_decoder_layers")
  + ("dropout_rate", "dtype", "remat"),
}


def get_config() -> ConfigDict:
  """A small T5 1.1 by span corruption; says nothing of where the text comes from."""
  config = ConfigDict()

  # The shape of the model: t2t/models/config.py says what each key means.
  config.model = ConfigDict(presets.t5_1_1("small"))

  config.data = ConfigDict()
  config.data.files = ""  # globs, comma-separated: .txt .jsonl .csv .tsv .tmx (.gz, .zst) .parquet .tfrecord; gs://
  config.data.eval_files = ""  # held-out text; without it about 1 % of `files` is held out, by a hash of the text
  config.data.field = "text"  # name of the text in JSON lines, CSV, Parquet, TFRecord; a path, meta.text; TMX: language
  config.data.annotations = "entities"  # that of [start, end] of each phrase, in characters: for annotated_masked_lm
  config.data.translation = "translation"  # of each text: a field, TMX's language, or beside it: .en.txt=.fr.txt
  config.data.both_directions = False  # a text and its translation are two examples: each is given, and the other asked
  config.data.language = ""  # what `files` are in: a name, sw; of texts with translations two, en,sw
  config.data.language_tags = ""  # in front of texts to translate: "<2{target}>", "{source} to {target}:"; "": none
  config.data.labels = ""  # `files` are a table: auto, number, text, or its classes "no,yes"; docs/finetune_table.md
  config.data.columns = ""  # of a table, which is what: "text=review,label=stars"; "": found by name and content
  config.data.prefix = ""  # of a table, in front of the inputs: "sst2 sentence:"; "": its column's name; none
  config.data.malformed = 0.0  # share of the records of `files` that each host may find so and leave out; 0: none
  config.data.files_may_change = False  # a run goes on though files that it reads were altered since it stopped
  config.data.objective = "span_corruption"  # what `files` are made into
  config.data.dictionary = ""  # TSV of words and translations, by which words of `files` are replaced; "": none are
  config.data.switching_rate = 0.0  # with which probability, of words that the dictionary has
  config.data.mixture = ""  # a registered seqio task or mixture, instead of `files`; "a,b,c": by numbers of examples
  config.data.task_modules = ()  # modules or .py files that register it: ("t2t.tasks.c4", "my_tasks.py")
  config.data.train_split = "train"  # of the mixture; of a benchmark a slice, too: train[:100]
  config.data.eval_split = "validation"  # of the mixture
  config.data.cache_dir = ""  # folder that `t2t cache` wrote: the mixture's tasks are read from it
  config.data.folders = ConfigDict()  # a benchmark's files as released (superglue=FOLDER); without: TensorFlow Datasets
  config.data.sources = ConfigDict()  # several, instead of files or a mixture: sources.NAME.files; see docs/sources.md
  config.data.size = "examples"  # what sources without a rate are drawn by: examples or tokens, of each there are
  config.data.alpha = 1.0  # to the power of which; 0.3: small ones more often (XLM-R, mT5); 1 / T of T5's temperature
  config.data.most_epochs = 0.0  # passes over a source or a task of a mixture at which a run warns; 0: never
  config.data.vocabulary = ""  # "bytes", a file or folder of SentencePiece, WordPiece or BPE; empty: the task's
  config.data.extra_ids = 100  # sentinels on top of the vocabulary
  config.data.special_tokens = False  # [MASK], <extra_id_0>, ... spelled in records are control tokens, not text
  config.data.inputs_length = 512  # positions
  config.data.targets_length = 114  # positions; 512 inputs at the density and span below make 114 targets
  config.data.noise_density = 0.0  # share of the tokens that is masked; 0: as the objective was published (0.15)
  config.data.mean_noise_span_length = 0.0  # tokens; 0: as the objective was published (3)
  config.data.pack = False  # several short examples in one sequence; otherwise text is concatenated and split
  config.data.num_streams = 0  # parts of the data with a position of their own; 0: chosen at the first start, then kept
  config.data.shuffle_buffer = 256  # examples of `files` that each stream draws from

  config.train = ConfigDict()
  config.train.steps = 1_000  # updates
  config.train.epochs = 0.0  # passes over the examples of the mixture's tasks, instead of steps; 0: steps count
  config.train.batch_size = 128  # sequences, over all devices
  config.train.microbatches = 1  # the batch is cut in as many parts, one after another: less memory, same result
  config.train.seed = 0  # of parameters, dropout and the order of data
  config.train.loss = ""  # cross_entropy, heads, tokens_and_heads, electra, contrastive; "": heads where they answer
  config.train.z_loss = 1e-4  # times log(Z)**2, added to the loss: keeps the logits near zero
  config.train.label_smoothing = 0.0  # share of the target distribution spread over the vocabulary; not held out
  config.train.chunk_tokens = 256  # target positions per batch shard whose logits exist at one time
  config.train.freeze = ()  # parameters whose path matches one of these patterns are not trained
  config.train.hosts = 0  # that must have come; 0: as many as there are
  config.train.stall_factor = 20.0  # a step so many times as long as usual has all hosts say where they stand; 0: none
  config.train.stall_seconds = 1_800  # the start, or a step, that takes so long ends a run on several hosts; 0: never
  config.train.compilation_cache = "auto"  # folder of compiled programs; "": none; several hosts: one that all see
  config.train.xla_flags = True  # those of t2t/runtime/xla_flags.py, which let collectives overlap with computing
  config.train.deterministic = False  # GPUs: the same bits each time, if slower; CPUs and TPUs give them anyway
  config.train.offload_optimizer = False  # moments wait in the host's memory between updates
  config.train.log_every = 1  # steps between rows in metrics.jsonl and TensorBoard, each of one step; the last has one

  config.numbers = ConfigDict()
  config.numbers.not_finite = "stop"  # a loss or gradient norm: stop; skip: no update; back: to the last checkpoint
  config.numbers.most_in_a_row = 10  # skip: so many updates may be left out one after another
  config.numbers.most_skipped = 0.05  # skip: share of train.steps whose updates may be left out; one may but at 0
  config.numbers.most_backs = 3  # back: so many times a run may go back
  config.numbers.spike_deviations = 0.0  # a loss so many standard deviations above the mean is a spike; 0: none is
  config.numbers.spike_window = 128  # steps before it that mean and deviation are of
  config.numbers.spike = "warn"  # at a spike: warn, stop, or back

  config.optimizer = ConfigDict()
  config.optimizer.name = "adafactor"  # adafactor, adamw, lamb, lion, muon, sgd, stable_adamw
  config.optimizer.learning_rate = 0.01  # at the top of the schedule
  config.optimizer.schedule = "t5_inverse_sqrt"  # or inverse_sqrt,cosine,linear,constant,wsd,slanted_triangle,one_cycle
  config.optimizer.warmup_steps = 10_000  # updates before the learning rate falls
  config.optimizer.warmup_ratio = 0.0  # the same as a share of all steps; 0: warmup_steps count
  config.optimizer.layer_decay = 1.0  # times the rate of each layer below: 0.9 for fine-tuning (Clark et al. 2020)
  config.optimizer.final_ratio = 0.0  # cosine, linear, wsd, one_cycle: last learning rate as a share of the top
  config.optimizer.decay_share = 0.2  # wsd: share of all steps, the last, in which the rate falls
  config.optimizer.decay_shape = "linear"  # wsd: how it falls; or 1-sqrt
  config.optimizer.rise = 0.1  # slanted_triangle, one_cycle: share of all steps, the first, in which the rate rises
  config.optimizer.rise_ratio = 32.0  # slanted_triangle, one_cycle: top of the rate over the first
  config.optimizer.clip_norm = 0.0  # global norm of the gradient; 0 does not clip
  config.optimizer.scale_by_parameter = True  # updates relative to each parameter's root mean square
  config.optimizer.weight_decay = 0.0  # times the learning rate
  config.optimizer.no_decay = ("norm", "bias")  # parameters whose path matches are not decayed
  config.optimizer.adafactor_decay_rate = 0.8  # second moments are averaged with 1 - step**-rate
  config.optimizer.adafactor_clip = 1.0  # root mean square of an update, before scaling
  config.optimizer.b1 = 0.9  # adamw, stable_adamw, lamb, lion, and what muon leaves to Adam
  config.optimizer.b2 = 0.999  # as b1; lion wants 0.99
  config.optimizer.epsilon = 1e-8  # as b1, but for lion
  config.optimizer.muon_momentum = 0.95  # of the matrices that muon makes orthogonal
  config.optimizer.muon_iterations = 5  # of Newton and Schulz, by which it does; small models need fewer
  config.optimizer.paths = ()  # "PATTERN: SETTING ...": frozen, rate=0.1, depth=0.9; see docs/parameters.md
  config.optimizer.fisher = ""  # folder that `t2t fisher` wrote: anchors hold each parameter by what it says (EWC)
  config.optimizer.log_distance = False  # how far each layer is from where it began; keeps the values it began with

  config.eval = ConfigDict()
  config.eval.every = 1_000  # steps; the last step is always evaluated; 0: once an epoch
  config.eval.batches = 20  # held-out batches at most; always the same ones
  config.eval.batch_size = 0  # sequences; 0: as train.batch_size
  config.eval.examples = 3  # of what the model makes of held-out text, at evaluations; the last are printed
  config.eval.patience = 0  # evaluations without a better one after which the run ends early; 0: it has all its steps
  config.eval.stop_by = "loss"  # what is to become better: the held-out loss, or a task's metric, "glue_rte/accuracy"
  # Of tasks with metrics:
  config.eval.tasks = ()  # those of the mixture that are evaluated, ("cb", "rte"); empty: all
  config.eval.method = ""  # write: token by token; rank: the likeliest of the task's options; head; "": as was trained
  config.eval.num_beams = 1  # of beam search; 1: the likeliest token at each position
  config.eval.length_penalty = 0.6  # of beam search: sums are divided by ((5 + length) / 6) ** penalty
  config.eval.shots = 0  # solved training examples in front of each input
  config.eval.max_examples = 0  # of each task; 0: all

  config.checkpoint = ConfigDict()
  config.checkpoint.every = 1_000  # steps; the last step is always saved; 0: once an epoch
  config.checkpoint.keep = 3  # the last so many, at least two; the best by held-out loss is kept besides
  config.checkpoint.retry_seconds = 300.0  # a save of one process that fails is tried again for so long

  config.logging = ConfigDict()
  config.logging.tracker = "none"  # wandb, trackio, mlflow: numbers go there as well; see docs/trackers.md
  config.logging.project = "t2t"  # what the tracker files the run under
  config.logging.texts = True  # eval.examples of them at each evaluation: samples.jsonl, TensorBoard; else at the end
  config.logging.histograms = 0  # TensorBoard: steps between those of parameters and their updates; 0: none

  config.init = ConfigDict()
  config.init.checkpoint = ""  # a checkpoint (t2t's, Hugging Face's or T5X's) whose parameters training starts from
  config.init.inherit = False  # its model and vocabulary take the place of config.model and config.data.vocabulary
  config.init.parameters = True  # False: start from fresh parameters after all, to compare
  # Of a model that is not the checkpoint's, patterns over its parameters' paths; all others are the checkpoint's:
  config.init.fresh = ()  # begin with fresh values: "head", "cross_attention,decoder/layers/mlp"
  config.init.parts = ()  # are called so there: "embed,encoder,encoder=decoder"; parts not named stay behind; ".": all
  config.init.rows = ()  # may have more or fewer rows than there, of which the first are taken: "embed/table,head"
  config.init.by_piece = False  # rows of its vocabulary are found by piece, not id; new: the mean of its old pieces

  # Parts of the run one after another, ({"share": 0.9, "data.inputs_length": 128}, {}): see docs/stages.md.
  config.stages = ()

  config.mesh = ConfigDict()  # devices along each axis; one may be -1: all that are left
  config.mesh.dcn_data = 1  # as data, from slice to slice over the data centre's network: as many as there are slices
  config.mesh.data = 1  # the batch is split, parameters are copied
  config.mesh.fsdp = 0  # batch and parameters are split; 0: as far as is sound, and the rest is data
  config.mesh.sequence = 1  # each sequence is split, for long ones; parameters as well
  config.mesh.tensor = 1  # heads, feed-forward and vocabulary are split
  config.mesh.order = ()  # chips along each side of a slice that axes cover, neighbours first: "tensor:2x4,fsdp:4x2"

  config.lock()
  config.data.folders.unlock()  # a config may name any: config.data.folders.superglue = "SuperGLUE"
  config.data.sources.unlock()  # likewise: config.data.sources.english = {"files": "en/*.txt", "rate": 2.0}
  return config
