/* cu_linear_q4.cu - the trunk's matrices whose weights are Q4. */
#include "sy_cu_quant_linear.h"

template int sy_cu_launch_linear<sy_cu_q4>(const sy_cu_plain &, const sy_cu_linear &, uint32_t,
                                           sy_cuda_variant, void *);
template int sy_cu_launch_linear<sy_cu_q4>(const sy_cu_gated &, const sy_cu_linear &, uint32_t,
                                           sy_cuda_variant, void *);
