"""What is controlled: vocabulary, the live host, the testbed, and the Gymnasium environments over them."""
