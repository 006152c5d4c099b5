/* cu_linear_q8.cu - the trunk's matrices whose weights are Q8. */
#include "sy_cu_quant_linear.h"

template int sy_cu_launch_linear<sy_cu_q8>(const sy_cu_plain &, const sy_cu_linear &, uint32_t,
                                           sy_cuda_variant, void *);
template int sy_cu_launch_linear<sy_cu_q8>(const sy_cu_gated &, const sy_cu_linear &, uint32_t,
                                           sy_cuda_variant, void *);
