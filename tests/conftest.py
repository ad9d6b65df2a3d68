"""All tests run on eight CPU devices, so that meshes can be tried on any machine, and compile everything anew."""

import os

import jax

# Programs of the tests run for milliseconds: to optimise them takes five times longer than to compile them as they are.
FASTER_COMPILES = (
  "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true --xla_cpu_use_fusion_emitters=false"
)
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FASTER_COMPILES}".strip()
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_enable_compilation_cache", False)
