/* cu_experts_fp8.cu - experts whose weights are FP8. */
#include "sy_cu_quant_experts.h"

template int sy_cu_launch_quant<sy_cu_fp8>(const sy_cu_up &, const sy_cuda_batch &, uint32_t,
                                           sy_cuda_variant, void *);
template int sy_cu_launch_quant<sy_cu_fp8>(const sy_cu_down &, const sy_cuda_batch &, uint32_t,
                                           sy_cuda_variant, void *);
