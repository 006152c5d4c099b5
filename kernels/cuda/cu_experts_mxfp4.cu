/* cu_experts_mxfp4.cu - experts whose weights are MXFP4. */
#include "sy_cu_quant_experts.h"

template int sy_cu_launch_quant<sy_cu_mxfp4>(const sy_cu_up &, const sy_cuda_batch &, uint32_t,
                                             sy_cuda_variant, void *);
template int sy_cu_launch_quant<sy_cu_mxfp4>(const sy_cu_down &, const sy_cuda_batch &, uint32_t,
                                             sy_cuda_variant, void *);
