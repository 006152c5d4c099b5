/* cu_linear_mxfp4.cu - the trunk's matrices whose weights are MXFP4. */
#include "sy_cu_quant_linear.h"

template int sy_cu_launch_linear<sy_cu_mxfp4>(const sy_cu_plain &, const sy_cu_linear &, uint32_t,
                                              sy_cuda_variant, void *);
template int sy_cu_launch_linear<sy_cu_mxfp4>(const sy_cu_gated &, const sy_cu_linear &, uint32_t,
                                              sy_cuda_variant, void *);
